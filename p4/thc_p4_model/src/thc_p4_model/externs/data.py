"""The bits of a program's data for a checksum, hash or digest."""

from collections.abc import Callable
from typing import Any

from thc_p4_model.checksums import pad_to_bytes
from thc_p4_model.interfaces import Kind, TypeInfo

Bits = tuple[int, int]
"""Value and width."""


def bits_of(type_info: TypeInfo) -> Callable[[Any], Bits]:
    """A function from values of this type to their bits. Invalid headers have none; varbits have their present ones."""
    if not _varies(type_info):
        pack, width = type_info.pack, type_info.width
        return lambda value: (pack(value), width)
    return lambda value: _walk(type_info, value)


def bytes_of(type_info: TypeInfo) -> Callable[[Any], bytes]:
    """As `bits_of`, filled up with zero bits to whole bytes."""
    bits = bits_of(type_info)
    return lambda value: pad_to_bytes(*bits(value))


def plain(type_info: TypeInfo, value: Any) -> Any:
    """The value for the control plane: structs, headers and tuples as dictionaries, invalid headers as None."""
    if type_info.kind is Kind.HEADER and not value.valid:
        return None
    if type_info.kind is Kind.TUPLE:
        return {name: plain(field, item) for (name, field), item in zip(type_info.fields, value, strict=True)}
    if type_info.fields:
        return {name: plain(field, item) for name, field, item in _members(type_info, value)}
    return value


def _varies(type_info: TypeInfo) -> bool:
    if type_info.kind in (Kind.HEADER, Kind.UNION, Kind.STACK, Kind.VARBIT):
        return True
    return any(_varies(field) for _, field in type_info.fields)


def _walk(type_info: TypeInfo, value: Any) -> Bits:
    if type_info.kind is Kind.VARBIT:
        return value.value, value.width
    if type_info.kind is Kind.HEADER:
        return (value.pack(), value.packed_bits()) if value.valid else (0, 0)
    if type_info.kind is Kind.STACK:
        assert type_info.element is not None
        parts = [(type_info.element, item) for item in value]
    elif type_info.kind is Kind.TUPLE:
        parts = [(field, item) for (_, field), item in zip(type_info.fields, value, strict=True)]
    elif type_info.fields:
        parts = [(field, item) for _, field, item in _members(type_info, value)]
    else:
        return type_info.pack(value), type_info.width
    total, width = 0, 0
    for field, item in parts:
        bits, count = _walk(field, item)
        total = (total << count) | bits
        width += count
    return total, width


def _members(type_info: TypeInfo, value: Any) -> list[tuple[str, TypeInfo, Any]]:
    return [
        (name, field, getattr(value, attribute))
        for attribute, (name, field) in zip(value.FIELDS, type_info.fields, strict=True)
    ]
