"""Euclidean norms of rotation blocks. reference.norm is the oracle, but for the order of additions.

Squares of floats are exact in double, and sums of doubles err in the sixteenth digit: the norm is the CPU's unless it
lies that close to the middle between two floats. Ranks use the shared maximum, so such a difference does no harm.
"""

from __future__ import annotations

from byteps_thc.gpu.frontend import L, arange, constexpr, conv, jit
from byteps_thc.gpu.layouts import spread, streamed, warps
from byteps_thc.gpu.tiles import ALL_TILES, ODD_TILES, first_block_of, first_of, is_odd, rest_of, there_of
from byteps_thc.keys import KEY_WORDS, ROUND

_ALL, _ODD_ALONE = constexpr(ALL_TILES), constexpr(ODD_TILES)
#: Coordinates that travel exactly of a program.
EXACT_COORDINATES = 1024
_EXACT, _KEY_WORDS, _ROUND = constexpr(EXACT_COORDINATES), constexpr(KEY_WORDS), constexpr(ROUND)


@jit
def load_carried(gradient, residual, inside, ADD: constexpr, ODD: constexpr):
    """Coordinates at those addresses as float32, with ADD the residual's on top; ODD: 0 where not `inside`."""
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
def _store_norms(norms, sent, at, value, there, SEND: constexpr):
    """Store norms, and as words: without the sign that a NaN may have, ordered as integers, NaN above infinity."""
    value = value.to(L.float32)
    L.store(norms + at, value, there)
    if SEND:
        L.store(sent + at, value.to(L.int32, bitcast=True) & 0x7FFFFFFF, there)


@jit
def _norms_of_tile(
    gradient, residual, norms, sent, tiles, holes, stride, coordinates, padded,
    LOG: constexpr, T: constexpr, ADD: constexpr, SEND: constexpr, ODD: constexpr, LISTED: constexpr,
):  # fmt: skip
    first = first_of(tiles, stride, T, LISTED)
    i = arange(T, streamed(T, warps(T), 4))
    BLOCKS: constexpr = T >> LOG
    at = first_block_of(tiles, LOG, T, LISTED)
    inside = there_of(i, tiles, holes, coordinates, T, ODD, LISTED)
    x = load_carried(gradient + first + i, residual + first + i, inside, ADD, ODD)
    wide = x.to(L.float64)
    squares = wide * wide
    if BLOCKS == 1 and not ODD:
        _store_norms(norms, sent, at, L.sqrt(L.sum(squares, 0)), True, SEND)
    else:
        groups = conv(L.sum(L.reshape(squares, [T // 64, 64]), 1), spread(T // 64, warps(T)))
        blocks: constexpr = spread(BLOCKS, warps(T))
        sums = conv(L.sum(L.reshape(groups, [BLOCKS, (1 << LOG) // 64]), 1), blocks)
        block = arange(BLOCKS, blocks)
        rest = rest_of(tiles, padded, T, LISTED)
        full = rest >> LOG if ODD else BLOCKS
        _store_norms(norms, sent, at + block, L.sqrt(sums), block < full, SEND)
        if ODD:  # the binary digits of what is behind the full blocks
            at += full
            position = arange(T // 64, spread(T // 64, warps(T))) * 64
            for k in L.static_range(LOG - 1, 5, -1):
                end = (rest >> k) << k
                there = ((rest >> k) & 1) == 1
                mine = (position >= end - (1 << k)) & (position < end)
                _store_norms(norms, sent, at, L.sqrt(L.sum(L.where(mine, groups, 0.0), 0)), there, SEND)
                at += there.to(L.int32)


@jit
def _begin(keys, count, words, number, round, largest, complement, T: constexpr):
    """Write what begins a round: the keys' round, and the header of the words that are sent."""
    for first in range(0, count, 1024):
        i = first + arange(1024, streamed(1024, warps(T), 1))
        L.store(keys + i * _KEY_WORDS + _ROUND, i * 0 + round, i < count)
    L.store(words, number)
    L.store(words + 1, round & 0x7FFFFFFF)
    L.store(words + 2, largest)
    L.store(words + 3, complement)


@jit
def _take_exact(gradient, values, index, count, program, T: constexpr):
    """values[count], float32 = gradient[index], _EXACT of them."""
    i = program * _EXACT + arange(_EXACT, streamed(_EXACT, warps(T), 1))
    at = L.load(index + i, i < count, 0)
    L.store(values + i, L.load(gradient + at, i < count, 0.0).to(L.float32), i < count)


@jit
def _norms_of_any_tile(
    gradient, residual, norms, sent, tiles, holes, stride, coordinates, padded,
    LOG: constexpr, T: constexpr, ADD: constexpr, SEND: constexpr, KIND: constexpr, LISTED: constexpr,
):  # fmt: skip
    if KIND == _ALL:
        if is_odd(tiles, coordinates, T, LISTED):
            _norms_of_tile(
                gradient, residual, norms, sent, tiles, holes, stride, coordinates, padded, LOG, T, ADD, SEND, True,
                LISTED,
            )  # fmt: skip
        else:
            _norms_of_tile(
                gradient, residual, norms, sent, tiles, holes, stride, coordinates, padded, LOG, T, ADD, SEND, False,
                LISTED,
            )  # fmt: skip
    else:
        odd: constexpr = KIND == _ODD_ALONE
        _norms_of_tile(
            gradient, residual, norms, sent, tiles, holes, stride, coordinates, padded, LOG, T, ADD, SEND, odd, LISTED
        )


@jit(do_not_specialize=["coordinates", "padded", "key_count", "number", "round", "largest", "complement", "exact_count",
                        "programs"],
     do_not_specialize_on_alignment=["sent", "words"])  # fmt: skip
def norms_kernel(
    gradient, residual, norms, sent, words, keys, key_count, number, round, largest, complement, exact, exact_index,
    exact_count, programs, tiles, holes, stride, coordinates, padded,
    LOG: constexpr, T: constexpr, ADD: constexpr, SEND: constexpr, BEGIN: constexpr, EXACT: constexpr, KIND: constexpr,
    LISTED: constexpr,
):  # fmt: skip
    """norms[blocks of a tile] of gradient (+ residual, with ADD). See encode_kernel for the rest.

    SEND: sent: int32[blocks], the norms as they travel. BEGIN: the round is written to `key_count` keys, and number,
    round, largest and complement to `words`, int32[4]. EXACT: programs from `programs` on take what travels exactly:
    exact: float32[exact_count], at the places exact_index, int64, of the gradient.
    """
    program = L.program_id(0)
    if BEGIN:
        if program == 0:
            _begin(keys, key_count, words, number, round, largest, complement, T)
    if EXACT:
        if program >= programs:
            _take_exact(gradient, exact, exact_index, exact_count, program - programs, T)
        else:
            _norms_of_any_tile(
                gradient, residual, norms, sent, tiles, holes, stride, coordinates, padded, LOG, T, ADD, SEND, KIND,
                LISTED,
            )  # fmt: skip
    else:
        _norms_of_any_tile(
            gradient, residual, norms, sent, tiles, holes, stride, coordinates, padded, LOG, T, ADD, SEND, KIND, LISTED
        )
