"""Sums to the codes and scales that a rank sends to all others; and what that lost, into its residual.

reference.requantize and requantizing_loss are the oracles.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from byteps_thc.compressor import SCALE_GROUP
from byteps_thc.gpu.encode import quantize_pairs, quarters, store_codes, whole
from byteps_thc.gpu.frontend import L, arange, cast, constexpr, conv, jit
from byteps_thc.gpu.layouts import flat, last_part, of_rows, rows, spread, warps
from byteps_thc.gpu.packing import below, load_number, load_rows
from byteps_thc.gpu.random_bits import flip, key_word, known_sum_errors, rounding_words, sign_words
from byteps_thc.gpu.rotation import block_of, hadamard
from byteps_thc.gpu.tiles import (
    ALL_TILES,
    ODD_TILES,
    codes_of,
    first_block_of,
    first_of,
    is_odd,
    key_of,
    part_of,
    rest_of,
    there_of,
    within_of,
)
from byteps_thc.keys import KEY_WORDS
from byteps_thc.wire.layout import MIN_ROTATION_BLOCK

#: Coordinates of a program of requantize_kernel.
TILE = 4096
_GROUP, _TILE = constexpr(SCALE_GROUP), constexpr(TILE)
_UNIT, _KEY_WORDS = constexpr(MIN_ROTATION_BLOCK), constexpr(KEY_WORDS)
_ALL, _ODD_ALONE = constexpr(ALL_TILES), constexpr(ODD_TILES)


def places_of(runs: Sequence[tuple[int, int, int, int]], device: torch.device) -> Tensor:
    """Return where the programs of requantize_kernel work: int32[programs, 4].

    runs: of sums of a partition each: where in the sums, where in the partition, how many, the partition's number. All
    are multiples of SCALE_GROUP, but that the last one may be one of 64.
    """
    places = [
        (at // MIN_ROTATION_BLOCK + part, first // MIN_ROTATION_BLOCK + part, min(count - 64 * part, TILE), number)
        for at, first, count, number in runs
        for part in range(0, -(-count // TILE) * (TILE // 64), TILE // 64)
    ]
    return torch.tensor(places, dtype=torch.int32, device=device).view(-1, 4)


@jit
def _largest(c, T: constexpr):
    """Of each group of c, float32[T / 32, 32], the largest magnitude, and for each row that of its group."""
    of_row = conv(L.max(L.abs(c), 1), spread(T // 32, warps(T)))
    by_group = L.reshape(of_row, [T // _GROUP, _GROUP // 32])
    largest = L.max(by_group, 1)
    in_rows = L.reshape(L.expand_dims(largest, 1) + by_group * 0.0, [T // 32])
    return conv(largest, spread(T // _GROUP, warps(T))), conv(in_rows, of_rows(rows(T, 0, 4)))


@jit
def _rounded_up(magnitude):
    """The upper half of magnitudes, float32, rounded up: those of bfloat16, uint32."""
    return (magnitude.to(L.uint32, bitcast=True) + 0xFFFF) >> 16


@jit
def _looked_up(received, values, place, rest, stride, shards, BITS: constexpr):
    """Sums of table values of codes place .. of all shards; int32[_TILE / 32, 32]."""
    row = arange(_TILE // 32, of_rows(rows(_TILE, 0, 32)))
    codes = received + place // 32 * BITS
    total = L.load(values + load_rows(codes, row, rest // 32, BITS, _TILE // 32).to(L.int32))
    for _ in range(1, shards):
        codes += stride
        total += L.load(values + load_rows(codes, row, rest // 32, BITS, _TILE // 32).to(L.int32))
    return total


@jit(do_not_specialize=["workers", "stride", "shards"])
def requantize_kernel(
    sums, codes, scales, entries, values, keys, own_keys, known, places, received, integers, stride, shards, workers,
    most, granularity,
    BITS: constexpr, WIDE: constexpr, KNOWN: constexpr, UP_BITS: constexpr,
):  # fmt: skip
    """Codes of BITS bits of sums, and a scale for each group of them.

    sums: uint8 or uint16, at most `most`. With UP_BITS they are written, sums of values of that table, `integers`, of
    `received`: codes of so many bits of so many shards, streams `stride` words apart, int32. codes: uint8, a stream.
    scales: uint16. entries, values, granularity: of the table of those codes, see DeviceTable. places: see places_of().
    keys: of the partitions, with the domain of requantizing. KNOWN: what is `known` of the sums of so many workers, see
    decode_kernel, is subtracted from them first; own_keys: with the workers' domain.
    """
    at = places + L.program_id(0) * 4
    begin = L.load(at).to(L.int64) * _UNIT
    first = L.load(at + 1).to(L.int64) * _UNIT
    rest = L.load(at + 2)
    part = L.load(at + 3).to(L.int64) * _KEY_WORDS
    key = keys + part
    j = arange(_TILE, flat(_TILE, 0))
    if UP_BITS:
        total = _looked_up(received, integers, begin, rest, stride, shards, UP_BITS)
        total = conv(L.reshape(total, [_TILE]), flat(_TILE, 0))
        L.store(sums + begin + j, total.to(sums.dtype.element_ty), j < rest)
        c = total.to(L.float32)
    else:
        c = L.load(sums + begin + j, j < rest, 0).to(L.float32)
    if KNOWN:
        c -= known_sum_errors(own_keys + part, known, workers, first, _TILE)
    c = L.where(j < rest, c * 2.0 - most, 0.0)
    c = conv(L.reshape(c, [_TILE // 32, 32]), rows(_TILE, 0, 32))
    largest, of_row = _largest(c, _TILE)
    group = arange(_TILE // _GROUP, spread(_TILE // _GROUP, warps(_TILE)))
    L.store(scales + begin // _GROUP + group, _rounded_up(largest).to(L.uint16), group * _GROUP < rest)
    limit = (_rounded_up(of_row) << 16).to(L.float32, bitcast=True)
    scale = L.div_rn(granularity * 0.5, limit)
    scale = L.where(scale < float("inf"), scale, 0.0)
    zero = L.expand_dims(limit * 0.0, 1)
    clamp = (L.expand_dims(limit, 1), zero, L.expand_dims(scale, 1), zero + granularity * 0.5, zero)
    bits0, bits1, bits2, bits3 = quarters(rounding_words(key, first, _TILE), _TILE)
    even, odd = L.split(L.reshape(c, [_TILE // 32, 16, 2]))
    even0, even1, even2, even3 = quarters(even, _TILE)
    odd0, odd1, odd2, odd3 = quarters(odd, _TILE)
    phase = key_word(key, 5)
    tables = (entries, values)
    codes0, _, _, _ = quantize_pairs(even0, odd0, bits0, phase, tables, clamp, BITS, WIDE, False)
    codes1, _, _, _ = quantize_pairs(even1, odd1, bits1, phase, tables, clamp, BITS, WIDE, False)
    codes2, _, _, _ = quantize_pairs(even2, odd2, bits2, phase, tables, clamp, BITS, WIDE, False)
    codes3, _, _, _ = quantize_pairs(even3, odd3, bits3, phase, tables, clamp, BITS, WIDE, False)
    store_codes(whole(codes0, codes1, codes2, codes3, _TILE), codes, begin, rest, _TILE, BITS, True)


@jit
def _lost(c, value, norm, scale, factor, threshold, granularity, points):
    """What rows of 32 coordinates have lost, times `factor`; norm, scale: of each row."""
    limit = (scale.to(L.uint32) << 16).to(L.float32, bitcast=True)
    step = L.expand_dims(L.div_rn(2.0 * limit, points), 1)
    of_block = threshold * norm
    finite = L.expand_dims(2.0 * of_block < float("inf"), 1)
    weight = L.expand_dims(L.div_rn(of_block, granularity), 1)
    lost = (c - (value * step - L.expand_dims(limit, 1))) * weight * L.expand_dims(factor, 1)
    return L.where(finite, lost, 0.0)


@jit
def _keep_loss_of_tile(
    sums, codes, scales, values, max_norms, residual, keep, keys, known, threshold, granularity, points, most, workers,
    begin, count, tiles, holes, stride,
    LOG: constexpr, T: constexpr, BITS: constexpr, KNOWN: constexpr, ODD: constexpr,
):  # fmt: skip
    place, rest = codes_of(tiles, T, True), rest_of(tiles, 0, T, True) if ODD else T
    within, key = within_of(tiles, T, True), key_of(keys, tiles, True)
    LAST: constexpr = last_part(T)
    lower, upper = begin - place, begin + count - place
    j = arange(T, flat(T, LAST))
    inside = (j >= lower) & (j < upper)
    size = below(upper // 8 * BITS, T // 8 * BITS + 8)
    both = load_number(codes - lower // 8 * BITS, L.where(inside, j, T), T, size, BITS)
    both |= L.load(sums - lower + j, inside, 0).to(L.int32) << 8
    inner: constexpr = rows(T, 0, 32)
    both = conv(L.reshape(conv(both, flat(T, 0)), [T // 32, 32]), inner)
    row = arange(T // 32, of_rows(inner)) * 32
    block, factor = block_of(row, rest, LOG, ODD)
    there = (row >= lower) & (row < upper) & (row < rest)
    norm = L.load(max_norms + first_block_of(tiles, LOG, T, True) + block, there, 0.0)
    scale = L.load(scales + L.where(there, row - lower, 0) // _GROUP, there, 0)
    c, value = (both >> 8).to(L.float32), L.load(values + (both & 255))
    if KNOWN:
        c -= conv(L.reshape(known_sum_errors(key, known, workers, within, T), [T // 32, 32]), inner)
    c = c * 2.0 - most
    lost = _lost(c, value, norm, scale, factor, threshold, granularity, points)
    x = L.reshape(L.where(L.expand_dims(there, 1), lost, 0.0), [T])
    x = conv(L.reshape(hadamard(x, rest, LOG, T, ODD), [T // 32, 32]), rows(T, LAST, 32))
    x = conv(L.reshape(flip(x, sign_words(key, within, T, warps(T)), T, LAST), [T]), flat(T, LAST))
    kept = (j < L.load(keep + part_of(tiles, True)) * T) & there_of(j, tiles, holes, 0, T, ODD, True)
    at = residual + first_of(tiles, stride, T, True) + j
    L.store(at, cast(L.load(at, kept, 0.0).to(L.float32) + x, residual.dtype.element_ty), kept)


@jit(do_not_specialize=["begin", "count", "workers"], do_not_specialize_on_alignment=["max_norms", "keep"])
def keep_loss_kernel(
    sums, codes, scales, values, max_norms, residual, keep, keys, known, threshold, granularity, points, most, workers,
    begin, count, tiles, holes, stride,
    LOG: constexpr, T: constexpr, BITS: constexpr, KNOWN: constexpr, KIND: constexpr,
):  # fmt: skip
    """One tile: where *keep, what requantizing lost of the shard's part of it is added to its residual.

    sums, codes, scales, most, KNOWN, known, workers: of requantize_kernel, of `count` codes of all from `begin` on.
    values, points: of the table of the codes, float32, and its granularity. max_norms, threshold, granularity: of
    decode_kernel and the sums. keys: of decode_kernel. See encode_kernel for the rest.
    """
    if KIND == _ALL:
        if is_odd(tiles, 0, T, True):
            _keep_loss_of_tile(
                sums, codes, scales, values, max_norms, residual, keep, keys, known, threshold, granularity, points,
                most, workers, begin, count, tiles, holes, stride, LOG, T, BITS, KNOWN, True,
            )  # fmt: skip
        else:
            _keep_loss_of_tile(
                sums, codes, scales, values, max_norms, residual, keep, keys, known, threshold, granularity, points,
                most, workers, begin, count, tiles, holes, stride, LOG, T, BITS, KNOWN, False,
            )  # fmt: skip
    else:
        odd: constexpr = KIND == _ODD_ALONE
        _keep_loss_of_tile(
            sums, codes, scales, values, max_norms, residual, keep, keys, known, threshold, granularity, points,
            most, workers, begin, count, tiles, holes, stride, LOG, T, BITS, KNOWN, odd,
        )  # fmt: skip
