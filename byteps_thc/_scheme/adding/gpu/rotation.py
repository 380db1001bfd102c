"""The Hadamard transform of the rotation blocks of a tile. reference.hadamard is the oracle: same order of additions.

A tile is T coordinates: one rotation block of T, several smaller ones, or the end of a partition (TAIL): full blocks,
then the binary digits of the rest, as in block_layout.h. rest: coordinates from the beginning of the tile to the end of
the partition, a multiple of 64. A tail's block of coordinate j is as large as the highest bit in which j and rest
differ. The stage of distance 2^s therefore skips one group of 2^(s + 1) coordinates: number rest >> (s + 1).
"""

from byteps_thc._scheme.gpu.frontend import L, arange, constexpr, conv, jit
from byteps_thc._scheme.gpu.layouts import end_stage, first_stage, flat, last_part, spread, warps


@jit
def _stages(x, FIRST: constexpr, LAST: constexpr, rest, T: constexpr, TAIL: constexpr, PART: constexpr):
    for s in L.static_range(FIRST, LAST):
        a, b = L.split(L.permute(L.reshape(x, [T >> (s + 1), 2, 1 << s]), (0, 2, 1)))
        y = conv(L.reshape(L.permute(L.join(a + b, a - b), (0, 2, 1)), [T]), flat(T, PART))
        x = L.where((arange(T, flat(T, PART)) >> (s + 1)) == (rest >> (s + 1)), x, y) if TAIL else y
    return x


@jit
def hadamard(x, rest, LOG: constexpr, T: constexpr, TAIL: constexpr):
    """H x of blocks of 2^LOG. x: float32[T] in any layout; the result has the layout of the last part of T."""
    for part in L.static_range(last_part(T) + 1):
        x = conv(x, flat(T, part))
        x = _stages(x, first_stage(part), end_stage(part, LOG), rest, T, TAIL, part)
    return x


@jit
def block_of(position, rest, LOG: constexpr, TAIL: constexpr):
    """(block's number in the tile, 1 / its size) of coordinates `position`: int32, multiples of 32."""
    block = position >> LOG
    size = position * 0 + (1 << LOG)
    if TAIL:
        full = (rest >> LOG) << LOG
        block = L.minimum(block, rest >> LOG)
        for k in L.static_range(6, LOG):
            end = (rest >> k) << k  # of the block of 2^k, if the tensor has one
            is_digit = ((rest >> k) & 1) == 1
            block += (is_digit & (position >= end)).to(L.int32)
            size = L.where(
                is_digit & (position >= full) & (position < end) & (position >= end - (1 << k)), 1 << k, size
            )
    return block, L.div_rn(1.0, size.to(L.float32))


@jit
def begins_block(position, rest, LOG: constexpr, TAIL: constexpr):
    """Whether coordinates `position` of a tile, as in block_of(), are the first of their blocks."""
    begins = (position & ((1 << LOG) - 1)) == 0
    if TAIL:
        for k in L.static_range(6, LOG):
            begins |= (((rest >> k) & 1) == 1) & (position == (((rest >> k) << k) - (1 << k)))
    return begins


@jit
def block_sums(x, rest, LOG: constexpr, T: constexpr, TAIL: constexpr):
    """For each row the sum of x over the rows of its block; x: float64[T / 32], integers."""
    layout: constexpr = spread(T // 32, warps(T))
    x = conv(x, layout)
    position = arange(T // 32, layout) * 32
    x = L.where(position < rest, x, 0.0)
    lines: constexpr = (1 << LOG) // 32
    by_block = L.reshape(x, [T >> LOG, lines])
    sums = L.expand_dims(L.sum(by_block, 1), 1) + by_block * 0.0
    sums = conv(L.reshape(sums, [T // 32]), layout)
    if TAIL:
        for k in L.static_range(6, LOG):
            end = (rest >> k) << k
            mine = (((rest >> k) & 1) == 1) & (position >= end - (1 << k)) & (position < end)
            sums = L.where(mine, L.sum(L.where(mine, x, 0.0), 0), sums)
    return sums
