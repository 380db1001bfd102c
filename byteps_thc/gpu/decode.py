"""Decode: sums unpacked, mapped to averages, rotated back, in one pass. reference.decode is the oracle, to the bit."""

from __future__ import annotations

from byteps_thc.gpu.frontend import L, arange, cast, constexpr, conv, jit
from byteps_thc.gpu.layouts import flat, last_part, of_columns, of_rows, rows, streamed, warps
from byteps_thc.gpu.norms import EXACT_COORDINATES
from byteps_thc.gpu.packing import below, load_number, load_rows, load_rows_at
from byteps_thc.gpu.random_bits import flip, known_sum_errors, sign_words
from byteps_thc.gpu.rotation import begins_block, block_of, block_sums, hadamard
from byteps_thc.gpu.tiles import (
    ALL_TILES,
    ODD_TILES,
    codes_of,
    first_block_of,
    first_of,
    is_odd,
    key_of,
    rest_of,
    there_of,
    within_of,
)

_ALL, _ODD_ALONE = constexpr(ALL_TILES), constexpr(ODD_TILES)
_EXACT = constexpr(EXACT_COORDINATES)


@jit
def _affine_map(max_norm, workers, factor, uniform, threshold, granularity):
    """(slope before, shift, slope after, limit) of the transform, affine_map.h.

    Where `uniform`, all of a block has one map, sums are transformed exactly and mapped after; else mapped before.
    """
    limit = threshold * max_norm
    finite = 2.0 * limit < float("inf")
    count = L.maximum(workers.to(L.float32), 1.0)
    slope = L.div_rn(L.div_rn(2.0 * limit, granularity), count) * factor
    there = workers > 0
    slope = L.where(there, slope, 0.0)
    shift = L.where(there, limit * factor, 0.0)
    slope = L.where(finite, slope, float("nan"))
    shift = L.where(finite, shift, 0.0)
    exact = uniform & there & finite
    before, shift = L.where(exact, 1.0, slope), L.where(exact, 0.0, shift)
    return before, shift, L.where(exact, slope, 1.0), L.where(exact, limit, 0.0)


@jit
def _exact_map(max_norm, workers, threshold, granularity, T: constexpr):
    """(slope, limit, sums to load) of a block of T that is transformed exactly, or of which no sum counts."""
    before, _, after, limit = _affine_map(max_norm, workers, 1.0 / T, True, threshold, granularity)
    exact = before == 1.0
    return L.where(exact, after, before * 0.0 + 1.0), limit, L.where(exact, T, 0)


@jit
def _scaled_map(max_norm, scale, most, factor, threshold, granularity):
    """(slope, shift) of a group of requantized sums before the transform, scaled_map() of affine_map.h."""
    ratio = L.div_rn((scale.to(L.uint32) << 16).to(L.float32, bitcast=True), most)
    of_block = threshold * max_norm
    limit = of_block * ratio
    finite = (2.0 * of_block < float("inf")) & (2.0 * limit < float("inf"))
    slope = L.where(finite, L.div_rn(2.0 * limit, granularity) * factor, float("nan"))
    return slope, L.where(finite, limit * factor, 0.0)


@jit
def _place_in_shards(first, line, lines_each):
    """(number of the shard, line in it) of lines first + line of all shards, of so many lines each; int32."""
    at = first.to(L.int32) + line
    shard = at // lines_each.to(L.int32)
    return shard, at - shard * lines_each.to(L.int32)


@jit
def _decode_tile(
    aggregate, contributions, max_norms, out, keys, known, threshold, granularity, most, codes_per_chunk, everybody,
    stride_of_shards, tiles, holes, stride, coordinates, padded,
    LOG: constexpr, T: constexpr, SUM_BITS: constexpr, WORDS: constexpr, MAPPED: constexpr, CHUNKED: constexpr,
    SCALED: constexpr, KNOWN: constexpr, ODD: constexpr, LISTED: constexpr,
):  # fmt: skip
    rest = rest_of(tiles, padded, T, LISTED) if ODD else T
    place = codes_of(tiles, T, LISTED)
    key = key_of(keys, tiles, LISTED)
    LAST: constexpr = last_part(T)
    ONE_MAP: constexpr = MAPPED and (1 << LOG) == T and not ODD and not CHUNKED and not SCALED and not KNOWN
    there = rest
    first_block = first_block_of(tiles, LOG, T, LISTED)
    if ONE_MAP:
        after, limit, there = _exact_map(
            L.load(max_norms + first_block), L.load(contributions), threshold, granularity, T
        )
    inner: constexpr = rows(T, 0, 32)
    if SCALED:
        line = arange(T // 32, of_rows(inner))
        shard, within = _place_in_shards(place // 32, line, codes_per_chunk)
        words = aggregate + shard.to(L.int64) * stride_of_shards + within * SUM_BITS
        codes = load_rows_at(words, line * 32 < rest, SUM_BITS, T // 32)
        sums = L.reshape(L.load(known + codes.to(L.int32)), [T])
    elif SUM_BITS == 0:
        j = arange(T, flat(T, 0))
        sums = L.load(aggregate + place + j, j < there, 0)
    elif WORDS:
        line = arange(T // 32, of_rows(inner))
        sums = load_rows(aggregate + place // 32 * SUM_BITS, line, there // 32, SUM_BITS, T // 32)
        sums = L.reshape(sums, [T])
    else:
        j = arange(T, flat(T, LAST))
        size = below((padded - place) // 8 * SUM_BITS, T // 8 * SUM_BITS + 8)
        sums = load_number(aggregate + place // 8 * SUM_BITS, j, there, size, SUM_BITS)
    sums = conv(sums, flat(T, 0)).to(L.float32)
    if ONE_MAP:
        x = sums
    else:
        row = arange(T // 32, of_rows(inner)) * 32
        block, factor = block_of(row, rest, LOG, ODD)
        inside = row < rest
        norm = L.load(max_norms + first_block + block, inside, 0.0)
        if SCALED:
            scale = L.load(contributions + shard.to(L.int64) * (2 * stride_of_shards) + within // SCALED, inside, 0)
            before, shift = _scaled_map(norm, scale, most, factor, threshold, granularity)
        else:
            if CHUNKED:
                workers = L.load(contributions + (place + row) // codes_per_chunk, inside, 0).to(L.int32)
                # The same in all of a block where the squares add up to those of the mean.
                count = block_sums((row * 0 + 1).to(L.float64), rest, LOG, T, ODD)
                total = block_sums(workers.to(L.float64), rest, LOG, T, ODD)
                squares = block_sums((workers * workers).to(L.float64), rest, LOG, T, ODD)
                uniform = conv(total * total == squares * count, of_rows(inner)) & MAPPED
            else:
                workers = row * 0 + L.load(contributions).to(L.int32)
                uniform = (row >= 0) & MAPPED
            if KNOWN:
                uniform &= workers != everybody
                error = L.reshape(
                    known_sum_errors(key, known, everybody, within_of(tiles, T, LISTED), T), [T // 32, 32]
                )
                error = L.where(L.expand_dims(conv(workers == everybody, of_rows(inner)), 1), error, 0.0)
                sums -= L.reshape(error, [T])
            before, shift, after, limit = _affine_map(norm, workers, factor, uniform, threshold, granularity)
        x = L.reshape(
            conv(L.reshape(sums, [T // 32, 32]), inner) * L.expand_dims(before, 1) - L.expand_dims(shift, 1), [T]
        )
    x = hadamard(x, rest, LOG, T, ODD)
    outer: constexpr = rows(T, LAST, 32)
    x = conv(L.reshape(x, [T // 32, 32]), outer)
    column = L.expand_dims(arange(32, of_columns(outer)), 0)
    if ONE_MAP:
        x = x * after
        line = L.expand_dims(arange(T // 32, of_rows(outer)), 1)
        x = L.where((column == 0) & (line == 0), x - limit, x)
    elif not SCALED:
        x = x * L.expand_dims(conv(after, of_rows(outer)), 1)
        begins = conv(begins_block(row, rest, LOG, ODD), of_rows(outer))
        x = L.where((column == 0) & L.expand_dims(begins, 1), x - L.expand_dims(conv(limit, of_rows(outer)), 1), x)
    x = conv(L.reshape(flip(x, sign_words(key, within_of(tiles, T, LISTED), T, warps(T)), T, LAST), [T]), flat(T, LAST))
    i = arange(T, flat(T, LAST))
    first = first_of(tiles, stride, T, LISTED)
    if ODD:
        inside = there_of(i, tiles, holes, coordinates, T, ODD, LISTED)
        L.store(out + first + i, cast(x, out.dtype.element_ty), inside)
    else:
        L.store(out + first + i, cast(x, out.dtype.element_ty))


@jit
def _decode_any_tile(
    aggregate, contributions, max_norms, out, keys, known, threshold, granularity, most, codes_per_chunk, everybody,
    stride_of_shards, tiles, holes, stride, coordinates, padded,
    LOG: constexpr, T: constexpr, SUM_BITS: constexpr, WORDS: constexpr, MAPPED: constexpr, CHUNKED: constexpr,
    SCALED: constexpr, KNOWN: constexpr, KIND: constexpr, LISTED: constexpr,
):  # fmt: skip
    if KIND == _ALL:
        if is_odd(tiles, coordinates, T, LISTED):
            _decode_tile(
                aggregate, contributions, max_norms, out, keys, known, threshold, granularity, most, codes_per_chunk,
                everybody, stride_of_shards, tiles, holes, stride, coordinates, padded, LOG, T,
                SUM_BITS, WORDS, MAPPED, CHUNKED, SCALED,
                KNOWN, True, LISTED,
            )  # fmt: skip
        else:
            _decode_tile(
                aggregate, contributions, max_norms, out, keys, known, threshold, granularity, most, codes_per_chunk,
                everybody, stride_of_shards, tiles, holes, stride, coordinates, padded, LOG, T,
                SUM_BITS, WORDS, MAPPED, CHUNKED, SCALED,
                KNOWN, False, LISTED,
            )  # fmt: skip
    else:
        odd: constexpr = KIND == _ODD_ALONE
        _decode_tile(
            aggregate, contributions, max_norms, out, keys, known, threshold, granularity, most, codes_per_chunk,
            everybody, stride_of_shards, tiles, holes, stride, coordinates, padded, LOG, T,
            SUM_BITS, WORDS, MAPPED, CHUNKED, SCALED,
            KNOWN, odd, LISTED,
        )  # fmt: skip


@jit
def _put_exact(out, values, index, count, workers, differ, program, T: constexpr):
    """out[index] = averages of values[count], float32, _EXACT of them; NaN where ranks differ."""
    i = program * _EXACT + arange(_EXACT, streamed(_EXACT, warps(T), 1))
    value = L.div_rn(L.load(values + i, i < count, 0.0), (i * 0 + workers).to(L.float32))
    value = L.where(L.load(differ).to(L.int32) != 0, float("nan"), value)
    L.store(out + L.load(index + i, i < count, 0), cast(value, out.dtype.element_ty), i < count)


@jit(
    do_not_specialize=["everybody", "stride_of_shards", "coordinates", "padded", "exact_count", "programs"],
    do_not_specialize_on_alignment=["max_norms", "exact", "differ"],
)
def decode_kernel(
    aggregate, contributions, max_norms, out, keys, known, threshold, granularity, most, codes_per_chunk, everybody,
    stride_of_shards, exact, exact_index, exact_count, differ, programs, tiles, holes, stride, coordinates, padded,
    LOG: constexpr, T: constexpr, SUM_BITS: constexpr, WORDS: constexpr, MAPPED: constexpr, CHUNKED: constexpr,
    SCALED: constexpr, KNOWN: constexpr, EXACT: constexpr, KIND: constexpr, LISTED: constexpr,
):  # fmt: skip
    """One tile of averages.

    aggregate: sums, uint8 or uint16[padded], or with SUM_BITS a bit stream of them, uint8, or int32 with WORDS.
    MAPPED: transform sums before they are mapped where a block allows it. contributions: uint8 or uint16, of each
    chunk of codes_per_chunk coordinates; without CHUNKED there is one. out: float32, float16 or bfloat16[coordinates].
    SCALED: they are requantized sums, which were at most `most`, as all workers have sent them: int32, stride_of_shards
    words each, codes of SUM_BITS bits in codes_per_chunk rows of 32, whose values are in `known`, float32; and behind
    them, where contributions point for the first one, scales, uint16, of SCALED rows of 32 each.
    KNOWN: what is `known`, float32[2, 16] of KnownErrors.sum, is subtracted
    from sums of `everybody`, a number of workers; not with SCALED. See encode_kernel for the rest.
    EXACT: programs from `programs` on put back what travelled exactly: sums over `everybody`, exact:
    float32[exact_count], to places exact_index, int64, of out; NaN where `differ`, a byte, is not 0.
    """
    if EXACT:
        if L.program_id(0) >= programs:
            _put_exact(out, exact, exact_index, exact_count, everybody, differ, L.program_id(0) - programs, T)
        else:
            _decode_any_tile(
                aggregate, contributions, max_norms, out, keys, known, threshold, granularity, most, codes_per_chunk,
                everybody, stride_of_shards, tiles, holes, stride, coordinates, padded, LOG, T,
                SUM_BITS, WORDS, MAPPED, CHUNKED, SCALED,
                KNOWN, KIND, LISTED,
            )  # fmt: skip
    else:
        _decode_any_tile(
            aggregate, contributions, max_norms, out, keys, known, threshold, granularity, most, codes_per_chunk,
            everybody, stride_of_shards, tiles, holes, stride, coordinates, padded, LOG, T,
            SUM_BITS, WORDS, MAPPED, CHUNKED, SCALED,
            KNOWN, KIND, LISTED,
        )  # fmt: skip
