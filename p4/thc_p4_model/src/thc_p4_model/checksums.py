"""Checksums and hashes over bytes, as v1model and TNA offer them to programs."""

import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass

Hash = Callable[[bytes], int]


def pad_to_bytes(value: int, bits: int) -> bytes:
    """The lower `bits` of value as bytes, first bit first; zero bits fill the last byte."""
    size = (bits + 7) // 8
    return (value << (size * 8 - bits)).to_bytes(size, "big")


def ones_complement_sum(value: int) -> int:
    """Ones' complement sum of the 16-bit words of a non-negative integer; its last bit is the last word's last bit.

    2**16 is 1 modulo 0xffff, so the sum of the words is the remainder; only zero words give 0, other multiples 0xffff.
    """
    return value % 0xFFFF or (0xFFFF if value else 0)


def csum16(data: bytes) -> int:
    """Internet checksum (RFC 1071); an odd last byte is the upper half of a word."""
    value = int.from_bytes(data, "big") << (8 * (len(data) & 1))
    return 0xFFFF - ones_complement_sum(value)


def xor_words(data: bytes, width_bytes: int) -> int:
    """Exclusive or of the words of the data, the last one filled with zero bytes."""
    result = 0
    for start in range(0, len(data), width_bytes):
        result ^= int.from_bytes(data[start : start + width_bytes].ljust(width_bytes, b"\0"), "big")
    return result


def identity(data: bytes) -> int:
    """The first eight bytes as an integer, as bmv2 does it."""
    return int.from_bytes(data[:8], "big")


@dataclass(frozen=True)
class Crc:
    """A cyclic redundancy check in the usual parameters; the polynomial is written without its highest term."""

    width: int
    polynomial: int
    initial: int = 0
    reflected: bool = False
    final_xor: int = 0

    @functools.cached_property
    def _table(self) -> tuple[int, ...]:
        top = 1 << (self.width - 1)
        mask = (1 << self.width) - 1
        table = []
        for byte in range(256):
            remainder = (reflect(byte, 8) if self.reflected else byte) << (self.width - 8)
            for _ in range(8):
                remainder = ((remainder << 1) ^ (self.polynomial if remainder & top else 0)) & mask
            table.append(reflect(remainder, self.width) if self.reflected else remainder)
        return tuple(table)

    def __call__(self, data: bytes) -> int:
        """The check value of the data."""
        table = self._table
        if self.reflected:
            remainder = reflect(self.initial, self.width)
            for byte in data:
                remainder = table[(remainder ^ byte) & 0xFF] ^ (remainder >> 8)
        else:
            mask = (1 << self.width) - 1
            shift = self.width - 8
            remainder = self.initial
            for byte in data:
                remainder = table[(remainder >> shift) ^ byte] ^ ((remainder << 8) & mask)
        return remainder ^ self.final_xor


def reflect(value: int, width: int) -> int:
    """The bits in opposite order."""
    return int(f"{value:0{width}b}"[::-1], 2)


CRC8 = Crc(8, 0x07)
CRC16 = Crc(16, 0x8005, reflected=True)
CRC64 = Crc(64, 0x42F0E1EBA9EA3693)


def crc32(data: bytes) -> int:
    """The CRC of Ethernet and zlib."""
    return zlib.crc32(data)
