"""Decode: sums mapped to averages, rotated back, in one pass. reference.decode is the oracle, to the bit."""

from byteps_thc._scheme.adding.gpu.rotation import begins_block, block_of, block_sums, hadamard
from byteps_thc._scheme.adding.gpu.tiles import (
    ALL_TILES,
    ODD_TILES,
    first_block_of,
    first_of,
    is_odd,
    rest_of,
    there_of,
)
from byteps_thc._scheme.gpu.frontend import L, arange, cast, constexpr, conv, jit
from byteps_thc._scheme.gpu.layouts import flat, last_part, of_columns, of_rows, rows, warps
from byteps_thc._scheme.gpu.random_bits import flip, sign_words

_ALL, _ODD_ALONE = constexpr(ALL_TILES), constexpr(ODD_TILES)


@jit
def _affine_map(max_norm, workers, factor, uniform, threshold, granularity):
    """(slope before, shift, slope after, limit) of the transform, affine_map.h.

    `uniform`: all of a block has one map, which can follow the exact transform of the sums; else it comes before.
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
    """(slope, limit, sums to load) of a block of T that is transformed exactly, or whose sums do not count."""
    before, _, after, limit = _affine_map(max_norm, workers, 1.0 / T, True, threshold, granularity)
    exact = before == 1.0
    return L.where(exact, after, before * 0.0 + 1.0), limit, L.where(exact, T, 0)


@jit
def _decode_tile(
    aggregate, contributions, max_norms, out, key, threshold, granularity, codes_per_chunk, tiles,
    LOG: constexpr, T: constexpr, MAPPED: constexpr, CHUNKED: constexpr, ODD: constexpr,
):  # fmt: skip
    rest = rest_of(tiles) if ODD else T
    first = first_of(tiles)
    LAST: constexpr = last_part(T)
    ONE_MAP: constexpr = MAPPED and (1 << LOG) == T and not ODD and not CHUNKED
    there = rest
    first_block = first_block_of(tiles)
    if ONE_MAP:
        after, limit, there = _exact_map(
            L.load(max_norms + first_block), L.load(contributions), threshold, granularity, T
        )
    j = arange(T, flat(T, 0))
    x = L.load(aggregate + first + j, j < there, 0).to(L.float32)
    if not ONE_MAP:
        inner: constexpr = rows(T, 0, 32)
        row = arange(T // 32, of_rows(inner)) * 32
        block, factor = block_of(row, rest, LOG, ODD)
        inside = row < rest
        norm = L.load(max_norms + first_block + block, inside, 0.0)
        if CHUNKED:
            workers = L.load(contributions + (first + row) // codes_per_chunk, inside, 0).to(L.int32)
            # The same in a whole block if its squares add up to the mean's squares.
            count = block_sums((row * 0 + 1).to(L.float64), rest, LOG, T, ODD)
            total = block_sums(workers.to(L.float64), rest, LOG, T, ODD)
            squares = block_sums((workers * workers).to(L.float64), rest, LOG, T, ODD)
            uniform = conv(total * total == squares * count, of_rows(inner)) & MAPPED
        else:
            workers = row * 0 + L.load(contributions).to(L.int32)
            uniform = (row >= 0) & MAPPED
        before, shift, after, limit = _affine_map(norm, workers, factor, uniform, threshold, granularity)
        x = conv(L.reshape(x, [T // 32, 32]), inner) * L.expand_dims(before, 1) - L.expand_dims(shift, 1)
        x = L.reshape(x, [T])
    x = hadamard(x, rest, LOG, T, ODD)
    outer: constexpr = rows(T, LAST, 32)
    x = conv(L.reshape(x, [T // 32, 32]), outer)
    column = L.expand_dims(arange(32, of_columns(outer)), 0)
    if ONE_MAP:
        x = x * after
        line = L.expand_dims(arange(T // 32, of_rows(outer)), 1)
        x = L.where((column == 0) & (line == 0), x - limit, x)
    else:
        x = x * L.expand_dims(conv(after, of_rows(outer)), 1)
        begins = conv(begins_block(row, rest, LOG, ODD), of_rows(outer))
        x = L.where((column == 0) & L.expand_dims(begins, 1), x - L.expand_dims(conv(limit, of_rows(outer)), 1), x)
    x = conv(L.reshape(flip(x, sign_words(key, first, T, warps(T)), T, LAST), [T]), flat(T, LAST))
    i = arange(T, flat(T, LAST))
    if ODD:
        inside = there_of(i, tiles, T, ODD)
        L.store(out + first + i, cast(x, out.dtype.element_ty), inside)
    else:
        L.store(out + first + i, cast(x, out.dtype.element_ty))


@jit(do_not_specialize_on_alignment=["max_norms"])
def decode_kernel(
    aggregate, contributions, max_norms, out, key, threshold, granularity, codes_per_chunk, tiles,
    LOG: constexpr, T: constexpr, MAPPED: constexpr, CHUNKED: constexpr, KIND: constexpr,
):  # fmt: skip
    """One tile of averages.

    aggregate: sums, uint8 or uint16[padded]. MAPPED: transform sums before the map, if a block allows it.
    contributions: uint8 or uint16, of each chunk of codes_per_chunk coordinates; without CHUNKED one for all. out:
    float32, float16 or bfloat16[coordinates]. encode_kernel describes the rest.
    """
    if KIND == _ALL:
        if is_odd(tiles):
            _decode_tile(
                aggregate, contributions, max_norms, out, key, threshold, granularity, codes_per_chunk, tiles,
                LOG, T, MAPPED, CHUNKED, True,
            )  # fmt: skip
        else:
            _decode_tile(
                aggregate, contributions, max_norms, out, key, threshold, granularity, codes_per_chunk, tiles,
                LOG, T, MAPPED, CHUNKED, False,
            )  # fmt: skip
    else:
        odd: constexpr = KIND == _ODD_ALONE
        _decode_tile(
            aggregate, contributions, max_norms, out, key, threshold, granularity, codes_per_chunk, tiles,
            LOG, T, MAPPED, CHUNKED, odd,
        )  # fmt: skip
