"""Numbers of 1 to 16 bits as one bit stream, most significant bit first. reference.pack and unpack are the oracles."""

from __future__ import annotations

from byteps_thc.gpu.frontend import L, arange, constexpr, jit, permute_bytes
from byteps_thc.gpu.layouts import streamed

#: Numbers, or words of the stream, of a program.
TILE = 1024
#: Warps of a program.
WARPS = 4
_TILE, _WARPS = constexpr(TILE), constexpr(WARPS)


@jit
def load_number(stream, i, count, size, BITS: constexpr):
    """Numbers i, 0 from count on, of a stream of `size` bytes, int32."""
    bit = i * BITS
    at = bit >> 3
    there = i < count
    window = L.load(stream + at, there, 0).to(L.int32) << 16
    if BITS > 1:
        window |= L.load(stream + at + 1, there & (at + 1 < size), 0).to(L.int32) << 8
    if BITS > 9:
        window |= L.load(stream + at + 2, there & (at + 2 < size), 0).to(L.int32)
    return (window >> (24 - BITS - (bit & 7))) & ((1 << BITS) - 1)


@jit
def below(count, most):
    """min(count, most) as int32, so that comparisons take one instruction."""
    return L.minimum(count, most).to(L.int32)


@jit
def unpack_kernel(packed, numbers, count, BITS: constexpr):
    """numbers[count] of a stream of code_bytes(count, BITS) bytes; uint8 or uint16."""
    first = L.program_id(0).to(L.int64) * _TILE
    i = arange(_TILE, streamed(_TILE, _WARPS, 4))
    rest = below(count - first, _TILE)
    size = (rest * BITS + 7) // 8
    value = load_number(packed + first // 8 * BITS, i, rest, size, BITS)
    L.store(numbers + first + i, value.to(numbers.dtype.element_ty), i < rest)


@jit
def pack_kernel(numbers, packed, count, size, BITS: constexpr, WORD: constexpr):
    """packed[size] = numbers[count] as a stream, WORD bytes of it a thread at a time; the last ones are filled with 0.

    packed: uint8, or int32 for WORD = 4, which then has size // 4 words and big-endian bytes in them.
    """
    base = L.program_id(0).to(L.int64) * _TILE
    start = base * (8 * WORD) // BITS  # the number that the program's first bit is of
    numbers += start
    there = below(count - start, 8 * WORD * _TILE + 64)
    i = arange(_TILE, streamed(_TILE, _WARPS, 1))
    bit = (base * (8 * WORD) - start * BITS).to(L.int32) + i * (8 * WORD)
    first = bit // BITS
    room = 8 * WORD - BITS + bit - first * BITS  # bits behind the first number, below 32
    value = (i * 0).to(L.uint32)
    for k in L.static_range((8 * WORD + BITS - 2) // BITS + 1):
        number = L.load(numbers + first + k, first + k < there, 0).to(L.uint32)
        left = room - k * BITS
        if (k + 1) * BITS <= 8 * WORD:
            value |= number << left.to(L.uint32)
        else:
            moved = number << L.maximum(left, 0).to(L.uint32)
            value |= L.where(left >= 0, moved, number >> L.maximum(-left, 0).to(L.uint32))
    if WORD == 4:
        zero = value * 0
        value = permute_bytes(value, zero, zero + 0x0123)
    L.store(packed + base + i, value.to(packed.dtype.element_ty), i < below(size - base, _TILE))
