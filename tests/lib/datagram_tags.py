"""The tags of authenticated jobs, written anew from docs/security.md: for vectors, and attackers who have the key."""

from __future__ import annotations

import hashlib
import struct

HEADER_BYTES = 32
TAG_BYTES = 8
_MASK = (1 << 64) - 1


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


class _SipState:
    def __init__(self, key: bytes, long: bool) -> None:
        k0, k1 = struct.unpack("<QQ", key)
        self.v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
        if long:
            self.v[1] ^= 0xEE

    def rounds(self, count: int) -> None:
        v0, v1, v2, v3 = self.v
        for _ in range(count):
            v0 = (v0 + v1) & _MASK
            v1 = _rotate(v1, 13) ^ v0
            v0 = _rotate(v0, 32)
            v2 = (v2 + v3) & _MASK
            v3 = _rotate(v3, 16) ^ v2
            v0 = (v0 + v3) & _MASK
            v3 = _rotate(v3, 21) ^ v0
            v2 = (v2 + v1) & _MASK
            v1 = _rotate(v1, 17) ^ v2
            v2 = _rotate(v2, 32)
        self.v = [v0, v1, v2, v3]

    def word(self) -> bytes:
        return struct.pack("<Q", self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3])


def siphash24(key: bytes, data: bytes, *, long: bool = False) -> bytes:
    """SipHash-2-4 of 8 bytes, or 16 when `long` (Aumasson, Bernstein: SipHash, a fast short-input PRF)."""
    state = _SipState(key, long)
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        state.v[3] ^= word
        state.rounds(2)
        state.v[0] ^= word
    state.v[2] ^= 0xEE if long else 0xFF
    state.rounds(4)
    first = state.word()
    if not long:
        return first
    state.v[1] ^= 0xDD
    state.rounds(4)
    return first + state.word()


def tag(key: bytes, datagram: bytes, *, up: bool, job: int | None = None) -> bytes:
    """What follows a datagram. job: None for the one in its header."""
    (in_header,) = struct.unpack_from(">H", datagram, 8)
    purpose = (b"thc up" if up else b"thc dn") + struct.pack(">H", in_header if job is None else job)
    derived = hashlib.blake2b(purpose, digest_size=32, key=key).digest()
    digest = siphash24(derived[16:], datagram[HEADER_BYTES:], long=True)
    return siphash24(derived[:16], datagram[:HEADER_BYTES] + digest)
