"""Messages as dataclasses of fields of whole bytes: the base of the generated wire.py."""

from typing import Annotated, ClassVar, Self

U8 = Annotated[int, 8]
U16 = Annotated[int, 16]
U24 = Annotated[int, 24]
U32 = Annotated[int, 32]
U64 = Annotated[int, 64]


class Struct:
    """A message, or a part of one: consecutive big-endian fields."""

    __slots__ = ()
    SIZE_BYTES: ClassVar[int]
    #: (name, bits) in wire order
    FIELDS: ClassVar[tuple[tuple[str, int], ...]]

    def __init_subclass__(cls) -> None:
        cls.FIELDS = tuple((name, kind.__metadata__[0]) for name, kind in cls.__annotations__.items())
        cls.SIZE_BYTES = sum(bits for _, bits in cls.FIELDS) // 8

    def pack(self) -> bytes:
        """Return the wire bytes; OverflowError if a field does not fit."""
        return b"".join(getattr(self, name).to_bytes(bits // 8, "big") for name, bits in self.FIELDS)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read the first SIZE_BYTES of `data`. Raises ValueError if it is shorter."""
        if len(data) < cls.SIZE_BYTES:
            raise ValueError(f"{cls.__name__} needs {cls.SIZE_BYTES} bytes, got {len(data)}")
        values, offset = {}, 0
        for name, bits in cls.FIELDS:
            values[name] = int.from_bytes(data[offset : offset + bits // 8], "big")
            offset += bits // 8
        return cls(**values)
