"""Descriptions of tables and externs as the compiler of the P4 model gives them to its runtime."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from thc_p4_model.interfaces import (
    ActionCall,
    ActionInfo,
    CallInfo,
    EntryInfo,
    ExternInfo,
    KeyInfo,
    Kind,
    Location,
    Param,
    TableInfo,
    TypeInfo,
)
from thc_p4_model.values import Header, Struct

HERE = Location("test.p4", 7)


def bit(width: int) -> TypeInfo:
    return TypeInfo(Kind.BIT, f"bit<{width}>", width, new=int, pack=int, unpack=int)


def tuple_of(*widths: int) -> TypeInfo:
    def pack(values: tuple[int, ...]) -> int:
        total = 0
        for value, width in zip(values, widths, strict=True):
            total = total << width | value
        return total

    fields = tuple((str(place), bit(width)) for place, width in enumerate(widths))
    return TypeInfo(Kind.TUPLE, "tuple", sum(widths), new=tuple, pack=pack, unpack=lambda _: (), fields=fields)


class Pair(Struct):
    """struct { bit<32> round; bit<32> count; }"""

    __slots__ = ("count", "round")
    FIELDS: ClassVar[tuple[str, ...]] = ("round", "count")
    BITS: ClassVar[int] = 64

    def __init__(self, round_: int = 0, count: int = 0) -> None:
        self.round = round_
        self.count = count

    def copy(self) -> "Pair":
        return Pair(self.round, self.count)


PAIR = TypeInfo(
    Kind.STRUCT,
    "Pair",
    64,
    new=Pair,
    pack=lambda pair: pair.round << 32 | pair.count,
    unpack=lambda value: Pair(value >> 32, value & 0xFFFFFFFF),
    fields=(("round", bit(32)), ("count", bit(32))),
)


class Small(Header):
    """header { bit<4> a; bit<12> b; }"""

    __slots__ = ("a", "b")
    FIELDS: ClassVar[tuple[str, ...]] = ("a", "b")
    BITS: ClassVar[int] = 16

    def __init__(self, a: int = 0, b: int = 0, valid: bool = True) -> None:
        self.a, self.b, self.valid = a, b, valid

    def pack(self) -> int:
        return self.a << 12 | self.b

    def unpack(self, value: int) -> None:
        self.a, self.b, self.valid = value >> 12, value & 0xFFF, True


class Odd(Header):
    """header { bit<5> a; }"""

    __slots__ = ("a",)
    FIELDS: ClassVar[tuple[str, ...]] = ("a",)
    BITS: ClassVar[int] = 5

    def __init__(self, a: int = 0) -> None:
        self.a, self.valid = a, True

    def pack(self) -> int:
        return self.a

    def unpack(self, value: int) -> None:
        self.a, self.valid = value, True


def table_info(
    *keys: tuple[str, str, int],
    size: int = 0,
    entries: tuple[EntryInfo, ...] = (),
    const_default: bool = False,
    properties: Mapping[str, Any] | None = None,
) -> TableInfo:
    """A table with keys (name, match kind, width) and the actions set(bit<8> value), drop() and NoAction()."""
    actions = (
        ActionInfo("In.set", (Param("value", "", bit(8)),), {}),
        ActionInfo("In.drop", (), {}),
        ActionInfo("NoAction", (), {}),
    )
    return TableInfo(
        name="In.t",
        keys=tuple(KeyInfo(name, kind, width, bit(width)) for name, kind, width in keys),
        actions=actions,
        default_action=ActionCall(2, ()),
        const_default_action=const_default,
        entries=entries,
        const_entries=bool(entries),
        size=size,
        properties=properties or {},
        annotations={},
        location=HERE,
    )


def constant_entry(match: tuple[Any, ...], value: int, priority: int) -> EntryInfo:
    return EntryInfo(match, ActionCall(0, (value,)), priority, HERE)


def extern_info(
    extern: str,
    *args: Any,
    name: str = "In.x",
    types: tuple[TypeInfo, ...] = (),
    abstract: Mapping[str, Callable[..., Any]] | None = None,
) -> ExternInfo:
    return ExternInfo(name, extern, types, args, {}, HERE, abstract or {})


def call_info(name: str, *params: tuple[str, TypeInfo], result: TypeInfo | None = None, line: int = 9) -> CallInfo:
    """A call in line 9 with parameters (direction, type)."""
    infos = tuple(Param(f"p{place}", direction, type_) for place, (direction, type_) in enumerate(params))
    return CallInfo(name, (), infos, result or bit(32), (None,) * len(infos), Location("test.p4", line))
