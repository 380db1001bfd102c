"""Sums of table values over workers: all that an aggregator does. reference.lookup_sum is the oracle."""

from __future__ import annotations

from byteps_thc.gpu.frontend import L, arange, constexpr, conv, jit, permute_bytes
from byteps_thc.gpu.layouts import streamed
from byteps_thc.gpu.packing import below, load_number

#: Sums of a program of lookup_sum_kernel.
TILE = 1024
#: 32-bit words of codes of a program of lookup_words_kernel.
WORDS = 512
#: Warps of a program.
WARPS = 4
_TILE, _WORDS, _WARPS = constexpr(TILE), constexpr(WORDS), constexpr(WARPS)
#: Most shards whose loop is unrolled.
UNROLLED = 16
_UNROLLED = constexpr(UNROLLED)


@jit
def lookup_sum_kernel(codes, values, sums, count, stride, shards, BITS: constexpr):
    """sums[i] = sum over shards w of values[code i of shard w], i < count.

    codes: streams of BITS bits a code, `stride` bytes apart. values: int32[2^BITS]. sums: uint8 or uint16.
    """
    first = L.program_id(0).to(L.int64) * _TILE
    i = arange(_TILE, streamed(_TILE, _WARPS, 4))
    rest = below(count - first, _TILE)
    size = (rest * BITS + 7) // 8
    codes += first // 8 * BITS
    total = i * 0
    for _ in range(shards):
        total += L.load(values + load_number(codes, i, rest, size, BITS))
        codes += stride
    L.store(sums + first + i, total.to(sums.dtype.element_ty), i < rest)


@jit
def _look_up(selector, upper, t0, t1, t2, t3):
    """Table values, a byte each, of the four codes in the lower half of `selector`; upper: bit 3 of each, 0 or 1."""
    low = permute_bytes(t0, t1, selector & 0x7777)
    high = permute_bytes(t2, t3, selector & 0x7777)
    mask = permute_bytes(upper * 0 + 0xFF00, upper, upper)
    return (low & (mask ^ 0xFFFFFFFF)) | (high & mask)


@jit
def _word(at):
    return L.load(at).to(L.uint32, bitcast=True)


@jit
def lookup_words_kernel(codes, values, sums, words, stride, shards, SHARDS: constexpr, WIDE: constexpr):
    """lookup_sum_kernel for 4-bit codes and values below 256, eight codes at a time: a byte permutation looks four up.

    codes: int32, `stride` words a shard, `words` of them looked up. values: int32[4], table values a byte each.
    sums: int32[2 words], or with WIDE (16-bit sums) int32[4 words].
    """
    first = L.program_id(0).to(L.int64) * _WORDS
    i = arange(_WORDS, streamed(_WORDS, _WARPS, 4))
    inside = i < below(words - first, _WORDS)
    codes += first
    t0, t1, t2, t3 = _word(values), _word(values + 1), _word(values + 2), _word(values + 3)
    zero = (i * 0).to(L.uint32)
    t0, t1, t2, t3 = zero + t0, zero + t1, zero + t2, zero + t3
    a, b, c, d = zero, zero, zero, zero
    if SHARDS <= _UNROLLED:
        for _ in L.static_range(SHARDS):
            code = L.load(codes + i, inside, 0).to(L.uint32, bitcast=True)
            a, b, c, d = _add(code, a, b, c, d, t0, t1, t2, t3, WIDE)
            codes += stride
    else:
        for _ in range(shards):
            code = L.load(codes + i, inside, 0).to(L.uint32, bitcast=True)
            a, b, c, d = _add(code, a, b, c, d, t0, t1, t2, t3, WIDE)
            codes += stride
    # permute_bytes looks lower halves of bytes up first; the first code is in the upper half.
    if WIDE:
        _store_four(a, b, c, d, sums, words)
    else:
        a, b = permute_bytes(a, a, zero + 0x2301), permute_bytes(b, b, zero + 0x2301)
        pairs = L.reshape(L.join(a, b), [2 * _WORDS])
        j = L.program_id(0).to(L.int64) * (2 * _WORDS)
        i = arange(2 * _WORDS, streamed(2 * _WORDS, _WARPS, 8))
        pairs = conv(pairs, streamed(2 * _WORDS, _WARPS, 8)).to(L.int32, bitcast=True)
        L.store(sums + j + i, pairs, i < below(2 * words - j, 2 * _WORDS))


@jit
def _store_four(a, b, c, d, sums, words):
    """Store a, b, c, d of each word next to each other, their halves exchanged."""
    a, b = (a >> 16) | (a << 16), (b >> 16) | (b << 16)
    c, d = (c >> 16) | (c << 16), (d >> 16) | (d << 16)
    fours = L.reshape(L.join(L.join(a, c), L.join(b, d)), [4 * _WORDS])
    layout: constexpr = streamed(4 * _WORDS, _WARPS, 16)
    i = arange(4 * _WORDS, layout)
    j = L.program_id(0).to(L.int64) * (4 * _WORDS)
    L.store(sums + j + i, conv(fours, layout).to(L.int32, bitcast=True), i < below(4 * words - j, 4 * _WORDS))


@jit
def _add(code, a, b, c, d, t0, t1, t2, t3, WIDE: constexpr):
    """Add the table values of eight codes: a byte each to a, b; WIDE: 16 bits each to a, b, c, d."""
    upper = (code >> 3) & 0x11111111
    x = _look_up(code, upper, t0, t1, t2, t3)
    y = _look_up(code >> 16, upper >> 16, t0, t1, t2, t3)
    if WIDE:
        zero = x * 0
        a += permute_bytes(x, zero, zero + 0x4140)
        b += permute_bytes(x, zero, zero + 0x4342)
        c += permute_bytes(y, zero, zero + 0x4140)
        d += permute_bytes(y, zero, zero + 0x4342)
    else:
        a += x
        b += y
    return a, b, c, d
