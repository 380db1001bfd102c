"""HELLO's payload: fixed fields, then the lookup table; to bytes and back. C++: byteps_thc/csrc/thc/hello.h."""

from __future__ import annotations

from collections.abc import Sequence

from byteps_thc._base.wire.layout import HelloPayload

_VALUE_BYTES = 2


def pack(hello: HelloPayload, values: Sequence[int]) -> bytes:
    """Return the wire bytes; OverflowError if a number does not fit."""
    return hello.pack() + b"".join(value.to_bytes(_VALUE_BYTES, "big") for value in values)


def unpack(payload: bytes, code_bits: int) -> tuple[HelloPayload, tuple[int, ...]]:
    """Return the fixed fields and the table of a HELLO for codes of that many bits; ValueError for another length."""
    expected_bytes = HelloPayload.SIZE_BYTES + (_VALUE_BYTES << code_bits)
    if len(payload) != expected_bytes:
        raise ValueError(f"HELLO of {code_bits}-bit codes needs {expected_bytes} bytes, got {len(payload)}")
    table = payload[HelloPayload.SIZE_BYTES :]
    starts = range(0, len(table), _VALUE_BYTES)
    return HelloPayload.unpack(payload), tuple(int.from_bytes(table[i : i + _VALUE_BYTES], "big") for i in starts)


def fnv1a_64(data: bytes) -> int:
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = (digest ^ byte) * 0x100000001B3 % (1 << 64)
    return digest
