"""Tags of authenticated jobs, written anew from docs/contributors/security.md: for vectors and forging workers."""

import hashlib
import struct

HEADER_BYTES = 32
TAG_BYTES = 8
_MASK = (1 << 64) - 1


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def poly1305(key: bytes, data: bytes) -> bytes:
    """The 16 bytes of Poly1305 (RFC 8439, section 2.5)."""
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    total = 0
    for at in range(0, len(data), 16):
        total = (total + int.from_bytes(data[at : at + 16] + b"\x01", "little")) * r % ((1 << 130) - 5)
    return ((total + int.from_bytes(key[16:], "little")) & ((1 << 128) - 1)).to_bytes(16, "little")


def siphash24(key: bytes, data: bytes) -> bytes:
    """The 8 bytes of SipHash-2-4 (Aumasson, Bernstein: SipHash, a fast short-input PRF)."""
    k0, k1 = struct.unpack("<QQ", key)
    state = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        state[3] ^= word
        state = _rounds(state, 2)
        state[0] ^= word
    state[2] ^= 0xFF
    v0, v1, v2, v3 = _rounds(state, 4)
    return struct.pack("<Q", v0 ^ v1 ^ v2 ^ v3)


def _rounds(state: list[int], count: int) -> list[int]:
    v0, v1, v2, v3 = state
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
    return [v0, v1, v2, v3]


def tag(key: bytes, datagram: bytes, *, up: bool, job: int | None = None) -> bytes:
    """Return the tag of a datagram. job: None for the job in its header."""
    (in_header,) = struct.unpack_from(">H", datagram, 8)
    purpose = (b"thc up" if up else b"thc dn") + struct.pack(">H", in_header if job is None else job)
    derived = hashlib.blake2b(purpose, digest_size=48, key=key).digest()
    return siphash24(derived[:16], datagram[:HEADER_BYTES] + poly1305(derived[16:], datagram[HEADER_BYTES:]))
