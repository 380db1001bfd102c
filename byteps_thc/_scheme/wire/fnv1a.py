"""The hash of HELLO's fields."""

from __future__ import annotations


def fnv1a_64(data: bytes) -> int:
    """Return FNV-1a of 64 bits."""
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = (digest ^ byte) * 0x100000001B3 % (1 << 64)
    return digest
