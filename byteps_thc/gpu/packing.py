"""Numbers of 1 to 16 bits as one bit stream, most significant bit first. reference.pack and unpack are the oracles."""

from __future__ import annotations

from byteps_thc.gpu.frontend import L, arange, constexpr, jit
from byteps_thc.gpu.layouts import streamed

#: Numbers, or words of the stream, of a program.
TILE = 4096
#: Warps of a program.
WARPS = 4
_TILE, _WARPS = constexpr(TILE), constexpr(WARPS)


@jit
def load_number(stream, i, count, size, BITS: constexpr, MASKED: constexpr):
    """Numbers i, int32 below count (MASKED: else 0), of a stream of `size` bytes, int32."""
    bit = i * BITS
    at = bit >> 3
    there = i < count
    window = L.load(stream + at, there, 0).to(L.int32) << 16 if MASKED else L.load(stream + at).to(L.int32) << 16
    if BITS > 1:
        window |= L.load(stream + at + 1, at + 1 < size, 0).to(L.int32) << 8
    if BITS > 9:
        window |= L.load(stream + at + 2, at + 2 < size, 0).to(L.int32)
    return (window >> (24 - BITS - (bit & 7))) & ((1 << BITS) - 1)


@jit
def unpack_kernel(packed, numbers, count, BITS: constexpr):
    """numbers[count] of a stream of code_bytes(count, BITS) bytes; uint8 or uint16."""
    first = L.program_id(0).to(L.int64) * _TILE
    i = arange(_TILE, streamed(_TILE, _WARPS, 4))
    rest = count - first
    size = (rest * BITS + 7) // 8
    value = load_number(packed + first // 8 * BITS, i, rest, size, BITS, True)
    L.store(numbers + first + i, value.to(numbers.dtype.element_ty), i < rest)


@jit
def pack_kernel(numbers, packed, count, size, BITS: constexpr, WORD: constexpr):
    """packed[size] = numbers[count] as a stream, WORD bytes of it a thread at a time; the last ones are filled with 0.

    packed: uint8, or int32 for WORD = 4, which then has size // 4 words and big-endian bytes in them.
    """
    word = L.program_id(0).to(L.int64) * _TILE + arange(_TILE, streamed(_TILE, _WARPS, 1))
    bit = word * (8 * WORD)
    first = bit // BITS
    ahead = (first * BITS - bit).to(L.int32)  # bits of its first number that are in the word before, negative
    value = (word * 0).to(L.int64)
    for k in L.static_range((8 * WORD + BITS - 2) // BITS + 1):
        number = L.load(numbers + first + k, first + k < count, 0).to(L.int64)
        left = 8 * WORD - BITS - ahead - k * BITS
        value |= L.where(left >= 0, number << L.maximum(left, 0).to(L.int64), number >> L.maximum(-left, 0).to(L.int64))
    if WORD == 4:
        value = ((value & 0xFF) << 24) | ((value & 0xFF00) << 8) | ((value >> 8) & 0xFF00) | ((value >> 24) & 0xFF)
    L.store(packed + word, value.to(packed.dtype.element_ty), word < size)
