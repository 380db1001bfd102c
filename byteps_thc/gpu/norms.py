"""Euclidean norms of rotation blocks. reference.norm is the oracle, but for the order of additions.

Squares of floats are exact in double, and sums of doubles err in the sixteenth digit: the norm is the CPU's unless it
lies that close to the middle between two floats. Ranks use the shared maximum, so such a difference does no harm.
"""

from __future__ import annotations

from byteps_thc.gpu.frontend import L, arange, constexpr, conv, jit
from byteps_thc.gpu.layouts import spread, streamed, warps
from byteps_thc.gpu.tiles import first_block_of, place_of, used_of


@jit
def load_carried(gradient, residual, inside, ADD: constexpr, TAIL: constexpr):
    """Coordinates at those addresses as float32, with ADD the residual's on top; TAIL: 0 where not `inside`."""
    if TAIL:
        x = L.load(gradient, inside, 0.0).to(L.float32)
        if ADD:
            x += L.load(residual, inside, 0.0).to(L.float32)
    else:
        x = L.load(gradient).to(L.float32)
        if ADD:
            x += L.load(residual).to(L.float32)
    return x


@jit(do_not_specialize=["first_tile", "coordinates", "padded"])
def norms_kernel(
    gradient, residual, norms, tiles, first_tile, coordinates, padded,
    LOG: constexpr, T: constexpr, ADD: constexpr, TAIL: constexpr, LISTED: constexpr,
):  # fmt: skip
    """norms[blocks of a tile] of gradient (+ residual, with ADD). See encode_kernel for the rest."""
    first, rest = place_of(tiles, first_tile, padded, T, LISTED)
    i = arange(T, streamed(T, warps(T), 4))
    BLOCKS: constexpr = T >> LOG
    at = norms + first_block_of(tiles, first_tile, LOG, T, LISTED)
    inside = i < used_of(coordinates, first, rest, TAIL, LISTED)
    x = load_carried(gradient + first + i, residual + first + i, inside, ADD, TAIL)
    wide = x.to(L.float64)
    squares = wide * wide
    if BLOCKS == 1 and not TAIL:
        L.store(at, L.sqrt(L.sum(squares, 0)).to(L.float32))
    else:
        groups = conv(L.sum(L.reshape(squares, [T // 64, 64]), 1), spread(T // 64, warps(T)))
        blocks: constexpr = spread(BLOCKS, warps(T))
        sums = conv(L.sum(L.reshape(groups, [BLOCKS, (1 << LOG) // 64]), 1), blocks)
        block = arange(BLOCKS, blocks)
        full = rest >> LOG if TAIL else BLOCKS
        L.store(at + block, L.sqrt(sums).to(L.float32), block < full)
        if TAIL:  # the binary digits of what is behind the full blocks
            at += full
            position = arange(T // 64, spread(T // 64, warps(T))) * 64
            for k in L.static_range(LOG - 1, 5, -1):
                end = (rest >> k) << k
                there = ((rest >> k) & 1) == 1
                mine = (position >= end - (1 << k)) & (position < end)
                L.store(at, L.sqrt(L.sum(L.where(mine, groups, 0.0), 0)).to(L.float32), there)
                at += there.to(L.int32)
