"""Euclidean norms of rotation blocks. reference.norm is the oracle, but for the order of additions.

Sums of doubles have errors in the sixteenth digit: the norm is the CPU's unless it is that close to the middle between
two floats. Workers use the shared maximum, so the difference is harmless.
"""

from byteps_thc._scheme.adding.gpu.tiles import (
    ALL_TILES,
    ODD_TILES,
    first_block_of,
    first_of,
    is_odd,
    rest_of,
    there_of,
)
from byteps_thc._scheme.gpu.frontend import L, arange, constexpr, conv, jit
from byteps_thc._scheme.gpu.layouts import spread, streamed, warps

_ALL, _ODD_ALONE = constexpr(ALL_TILES), constexpr(ODD_TILES)


@jit
def load_carried(gradient, residual, inside, ADD: constexpr, ODD: constexpr):
    """Coordinates at those addresses as float32, with ADD plus the residual's; ODD: 0 where not `inside`."""
    if ODD:
        x = L.load(gradient, inside, 0.0).to(L.float32)
        if ADD:
            x += L.load(residual, inside, 0.0).to(L.float32)
    else:
        x = L.load(gradient).to(L.float32)
        if ADD:
            x += L.load(residual).to(L.float32)
    return x


@jit
def _norms_of_tile(
    gradient, residual, norms, tiles,
    LOG: constexpr, T: constexpr, ADD: constexpr, ODD: constexpr,
):  # fmt: skip
    first = first_of(tiles)
    i = arange(T, streamed(T, warps(T), 4))
    BLOCKS: constexpr = T >> LOG
    at = norms + first_block_of(tiles)
    inside = there_of(i, tiles, T, ODD)
    x = load_carried(gradient + first + i, residual + first + i, inside, ADD, ODD)
    wide = x.to(L.float64)
    squares = wide * wide
    if BLOCKS == 1 and not ODD:
        L.store(at, L.sqrt(L.sum(squares, 0)).to(L.float32))
    else:
        groups = conv(L.sum(L.reshape(squares, [T // 64, 64]), 1), spread(T // 64, warps(T)))
        blocks: constexpr = spread(BLOCKS, warps(T))
        sums = conv(L.sum(L.reshape(groups, [BLOCKS, (1 << LOG) // 64]), 1), blocks)
        block = arange(BLOCKS, blocks)
        rest = rest_of(tiles)
        full = rest >> LOG if ODD else BLOCKS
        L.store(at + block, L.sqrt(sums).to(L.float32), block < full)
        if ODD:  # the binary digits of the rest behind the full blocks
            at += full
            position = arange(T // 64, spread(T // 64, warps(T))) * 64
            for k in L.static_range(LOG - 1, 5, -1):
                end = (rest >> k) << k
                there = ((rest >> k) & 1) == 1
                mine = (position >= end - (1 << k)) & (position < end)
                L.store(at, L.sqrt(L.sum(L.where(mine, groups, 0.0), 0)).to(L.float32), there)
                at += there.to(L.int32)


@jit
def norms_kernel(
    gradient, residual, norms, tiles,
    LOG: constexpr, T: constexpr, ADD: constexpr, KIND: constexpr,
):  # fmt: skip
    """norms[blocks of a tile] of gradient (+ residual, with ADD). encode_kernel describes the rest."""
    if KIND == _ALL:
        if is_odd(tiles):
            _norms_of_tile(gradient, residual, norms, tiles, LOG, T, ADD, True)
        else:
            _norms_of_tile(gradient, residual, norms, tiles, LOG, T, ADD, False)
    else:
        odd: constexpr = KIND == _ODD_ALONE
        _norms_of_tile(gradient, residual, norms, tiles, LOG, T, ADD, odd)
