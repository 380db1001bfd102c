"""Bases of the Python classes the compiler generates for headers, structs, stacks and unions.

Invariant: every field of an invalid header is zero, but for headers that the program never makes valid: it uses these
as metadata (`compiler.never_valid`). Reads thus give zero without a check, and only writes look at `valid`.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from thc_p4_model.interfaces import ParserError


class VarBits(NamedTuple):
    """A varbit value: its present width in bits and its bits as an integer."""

    width: int = 0
    value: int = 0


class Struct:
    """A struct. Generated subclasses have one slot per field and fast versions of the methods below."""

    __slots__ = ()
    FIELDS: ClassVar[tuple[str, ...]] = ()
    """Python attribute names, in order."""
    BITS: ClassVar[int] = 0
    """Width of `pack`'s result, header validity ignored."""

    def copy(self) -> Self:
        """An independent copy."""
        raise NotImplementedError

    def assign(self, other: Self) -> None:
        """Take over the value of `other`, in place."""
        raise NotImplementedError

    def reset(self) -> None:
        """Back to the zero value: fields zero, headers invalid."""
        raise NotImplementedError

    def fill(self, *values: Any) -> None:
        """Set all fields, in order; a header becomes valid."""
        raise NotImplementedError

    def pack(self) -> int:
        """All fields as one integer, the first in the most significant bits."""
        raise NotImplementedError

    def unpack(self, value: int) -> None:
        """The inverse of `pack`; headers become valid."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(getattr(self, f) == getattr(other, f) for f in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{f}={getattr(self, f)!r}' for f in self.FIELDS)})"


class Header(Struct):
    """A header. `BITS` is the width without varbit fields."""

    __slots__ = ("valid",)
    VARBIT: ClassVar[str | None] = None
    """The field of type varbit, if the header has one."""
    valid: bool

    def set_valid(self) -> None:
        """Make the header valid; its fields keep their values."""
        self.valid = True

    def set_invalid(self) -> None:
        """Make the header invalid and its fields zero."""
        raise NotImplementedError

    def load(self, data: bytes | memoryview, offset: int) -> None:
        """Fill the fixed fields from whole bytes and make the header valid; only where BITS is a multiple of 8."""
        self.unpack(int.from_bytes(data[offset : offset + self.BITS // 8], "big"))

    def load_varbit(self, fixed: int, width: int, value: int) -> None:
        """Fill a header with a varbit field: its fixed bits, and width and value of the varbit; makes it valid."""
        raise NotImplementedError

    def packed_bits(self) -> int:
        """Width of `pack`'s result now: BITS and the present width of the varbit field."""
        return self.BITS

    def dump(self) -> bytes:
        """The header as bytes; only where its present width is a multiple of 8."""
        return self.pack().to_bytes(self.packed_bits() // 8, "big")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        assert isinstance(other, Header)
        return self.valid == other.valid and all(getattr(self, f) == getattr(other, f) for f in self.FIELDS)

    __hash__ = None

    def __repr__(self) -> str:
        return super().__repr__() if self.valid else f"{type(self).__name__}(invalid)"


class HeaderUnion(Struct):
    """A header union: at most one member is valid."""

    __slots__ = ()

    @property
    def valid(self) -> bool:
        """Whether a member is valid."""
        return any(getattr(self, member).valid for member in self.FIELDS)

    def select(self, member: str) -> None:
        """Make every other member invalid."""
        for name in self.FIELDS:
            if name != member:
                getattr(self, name).set_invalid()

    def set_invalid(self) -> None:
        """Make every member invalid."""
        self.select("")


Element = TypeVar("Element", bound=Struct)


class HeaderStack(Generic[Element]):
    """A header stack; the elements are headers or header unions."""

    __slots__ = ("items", "next_index")

    def __init__(self, items: list[Element]) -> None:
        self.items = items
        self.next_index = 0

    def at(self, index: int) -> Element:
        """The element at a run-time index; outside the stack a new invalid element."""
        items = self.items
        return items[index] if 0 <= index < len(items) else self._detached()

    def _detached(self) -> Element:
        detached = self.items[0].copy()
        detached.set_invalid()  # type: ignore[attr-defined]
        return detached

    def next(self) -> Element:
        """`stack.next` in a parser."""
        if self.next_index >= len(self.items):
            raise ParserError("StackOutOfBounds")
        return self.items[self.next_index]

    def last(self) -> Element:
        """`stack.last` in a parser."""
        if self.next_index == 0:
            raise ParserError("StackOutOfBounds")
        return self.items[self.next_index - 1]

    def push_front(self, count: int) -> None:
        """Shift towards higher indices; the first `count` elements become invalid."""
        size = len(self.items)
        count = min(count, size)
        fresh = [self._detached() for _ in range(count)]
        self.items[:] = fresh + self.items[: size - count]
        self.next_index = min(self.next_index + count, size)

    def pop_front(self, count: int) -> None:
        """Shift towards lower indices; the last `count` elements become invalid."""
        count = min(count, len(self.items))
        fresh = [self._detached() for _ in range(count)]
        self.items[:] = self.items[count:] + fresh
        self.next_index = max(self.next_index - count, 0)

    def reset(self) -> None:
        """Make every element invalid."""
        for item in self.items:
            item.reset()
        self.next_index = 0

    def copy(self) -> "HeaderStack[Element]":
        """An independent copy."""
        other = HeaderStack([item.copy() for item in self.items])
        other.next_index = self.next_index
        return other

    def assign(self, other: "HeaderStack[Element]") -> None:
        """Take over the value of `other`, in place."""
        for mine, theirs in zip(self.items, other.items, strict=True):
            mine.assign(theirs)
        self.next_index = other.next_index

    def __iter__(self) -> Iterator[Element]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeaderStack) and self.items == other.items

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"HeaderStack({self.items!r})"


def copy_value(value: Any) -> Any:
    """A copy of any run-time value; scalars and tuples of scalars are immutable and returned as they are."""
    if isinstance(value, (Struct, HeaderStack)):
        return value.copy()
    if isinstance(value, tuple) and not isinstance(value, VarBits):
        return tuple(copy_value(item) for item in value)
    return value
