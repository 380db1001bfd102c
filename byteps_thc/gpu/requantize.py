"""Sums to the codes and scales that a rank sends to all others, and back; and what that lost, into its residual.

reference.requantize and requantizing_loss are the oracles.
"""

from __future__ import annotations

from byteps_thc.compressor import SCALE_GROUP
from byteps_thc.gpu.encode import quantize_pairs, quarters, store_codes, whole
from byteps_thc.gpu.frontend import L, arange, cast, constexpr, conv, jit
from byteps_thc.gpu.layouts import flat, last_part, of_rows, rows, spread, streamed, warps
from byteps_thc.gpu.packing import below, load_number, load_rows
from byteps_thc.gpu.random_bits import flip, key_word, known_sum_errors, rounding_words, sign_words
from byteps_thc.gpu.rotation import block_of, hadamard
from byteps_thc.gpu.tiles import first_block_of, place_of, used_of

#: Coordinates of a program of requantize_kernel; of expand_kernel, in rows of 32, and its warps.
TILE = 4096
ROWS = 128
WARPS = 4
_GROUP, _TILE, _ROWS, _WARPS = constexpr(SCALE_GROUP), constexpr(TILE), constexpr(ROWS), constexpr(WARPS)


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


@jit(do_not_specialize=["first", "count", "workers"])
def requantize_kernel(
    sums, codes, scales, entries, values, key, own_key, known, first, count, workers, most, granularity,
    BITS: constexpr, WIDE: constexpr, KNOWN: constexpr,
):  # fmt: skip
    """Codes of BITS bits of sums[count], and a scale for each group of them.

    sums: uint8 or uint16, at most `most`; count: a multiple of 64. codes: uint8, a stream. scales: uint16. entries,
    values, granularity: of the table of those codes, see DeviceTable. key: of the partition, with the domain of
    requantizing; first: the coordinate of the partition that the sums begin with. KNOWN: what is `known` of the sums of
    so many workers, see decode_kernel, is subtracted from them first; own_key: with the workers' domain.
    """
    begin = L.program_id(0).to(L.int64) * _TILE
    rest = below(count - begin, _TILE)
    j = arange(_TILE, flat(_TILE, 0))
    c = L.load(sums + begin + j, j < rest, 0).to(L.float32)
    if KNOWN:
        c -= known_sum_errors(own_key, known, workers, first + begin, _TILE)
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
    bits0, bits1, bits2, bits3 = quarters(rounding_words(key, first + begin, _TILE), _TILE)
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


@jit(do_not_specialize=["begin", "count", "workers", "first_tile", "coordinates", "padded"],
     do_not_specialize_on_alignment=["max_norms", "keep", "tiles"])  # fmt: skip
def keep_loss_kernel(
    sums, codes, scales, values, max_norms, residual, keep, key, known, threshold, granularity, points, most, workers,
    begin, count, tiles, first_tile, coordinates, padded,
    LOG: constexpr, T: constexpr, BITS: constexpr, KNOWN: constexpr, TAIL: constexpr,
    LISTED: constexpr,
):  # fmt: skip
    """One tile: where *keep, what requantizing lost of the shard's part of it is added to its residual.

    sums, codes, scales, most, KNOWN, known, workers: of requantize_kernel, of `count` coordinates of the partition from
    `begin` on. values, points: of the table of the codes, float32, and its granularity. max_norms, threshold,
    granularity: of decode_kernel and the sums. key: of decode_kernel. See encode_kernel for the rest.
    """
    first, behind = place_of(tiles, first_tile, padded, T, LISTED)
    rest = behind if TAIL else T
    LAST: constexpr = last_part(T)
    lower, upper = begin - first, begin + count - first
    j = arange(T, flat(T, LAST))
    inside = (j >= lower) & (j < upper)
    size = below(upper // 8 * BITS, T // 8 * BITS + 8)
    both = load_number(codes - lower // 8 * BITS, L.where(inside, j, T), T, size, BITS)
    both |= L.load(sums - lower + j, inside, 0).to(L.int32) << 8
    inner: constexpr = rows(T, 0, 32)
    both = conv(L.reshape(conv(both, flat(T, 0)), [T // 32, 32]), inner)
    row = arange(T // 32, of_rows(inner)) * 32
    block, factor = block_of(row, rest, LOG, TAIL)
    there = (row >= lower) & (row < upper) & (row < rest)
    norm = L.load(max_norms + first_block_of(tiles, first_tile, LOG, T, LISTED) + block, there, 0.0)
    scale = L.load(scales + L.where(there, row - lower, 0) // _GROUP, there, 0)
    c, value = (both >> 8).to(L.float32), L.load(values + (both & 255))
    if KNOWN:
        c -= conv(L.reshape(known_sum_errors(key, known, workers, first, T), [T // 32, 32]), inner)
    c = c * 2.0 - most
    lost = _lost(c, value, norm, scale, factor, threshold, granularity, points)
    x = L.reshape(L.where(L.expand_dims(there, 1), lost, 0.0), [T])
    x = conv(L.reshape(hadamard(x, rest, LOG, T, TAIL), [T // 32, 32]), rows(T, LAST, 32))
    x = conv(L.reshape(flip(x, sign_words(key, first, T, warps(T)), T, LAST), [T]), flat(T, LAST))
    kept = (j < L.load(keep) * T) & (j < used_of(coordinates, first, rest, TAIL, LISTED))
    at = residual + first + j
    L.store(at, cast(L.load(at, kept, 0.0).to(L.float32) + x, residual.dtype.element_ty), kept)


@jit
def expand_kernel(shards, sent, table, values, scales, stride, tiles, rows_each, BITS: constexpr):
    """Table values of codes and scales of shards of requantized sums, without gaps.

    shards: int32, `stride` words apart: rows_each rows of 32 codes of BITS bits, then their scales; sent: the same
    memory as uint16, from the first scale on. table: int32[2^BITS]. values: uint8, scales: uint16, of all. tiles:
    programs of a shard.
    """
    shard = (L.program_id(0) // tiles).to(L.int64)
    first = (L.program_id(0) % tiles).to(L.int64) * _ROWS
    there = below(rows_each - first, _ROWS)
    row = arange(_ROWS, streamed(_ROWS, _WARPS, 1))
    code = load_rows(shards + shard * stride + first * BITS, row, there, BITS, _ROWS)
    layout: constexpr = streamed(32 * _ROWS, _WARPS, 16)
    value = conv(L.reshape(L.load(table + code.to(L.int32)).to(L.uint8), [32 * _ROWS]), layout)
    i = arange(32 * _ROWS, layout)
    L.store(values + (shard * rows_each + first) * 32 + i, value, i < there * 32)
    groups: constexpr = 32 * _ROWS // _GROUP
    group = arange(groups, spread(groups, _WARPS))
    inside = group * (_GROUP // 32) < there
    at = first // (_GROUP // 32) + group
    scale = L.load(sent + shard * (2 * stride) + at, inside, 0)
    L.store(scales + shard * (rows_each // (_GROUP // 32)) + at, scale, inside)
