"""Codes to the owners of shards: rotated, rounded to the nearest point, packed, with a scale for each block.

One pass over the gradient. The same launch writes fingerprints and exact values.
"""

from __future__ import annotations

from byteps_thc._scheme.gpu.frontend import L, arange, constexpr, conv, jit, number
from byteps_thc._scheme.gpu.layouts import flat, last_part, of_rows, rows, streamed, warps
from byteps_thc._scheme.gpu.nearest_blocks import (
    KEY_WORDS,
    UP,
    block_norms,
    block_scales,
    block_sums,
    is_finite,
    of_each,
    rotated,
    sign_words,
)
from byteps_thc._scheme.gpu.nearest_tiles import (
    blocks_of,
    code_places,
    coordinates_of,
    is_full,
    is_halved,
    log_of,
    owner_of,
    scale_places,
)
from byteps_thc._scheme.gpu.packing import row_words, store_halved_rows, store_rows
from byteps_thc._scheme.gpu.random_bits import flip
from byteps_thc._scheme.gpu.tiles import ALL_TILES, FULL_TILES

#: Words before the scales of a message: two of the fingerprint, two zeros.
HEADER_WORDS = 4
#: Exact values, and messages, of a program.
HEAD = 1024
_HEADER_WORDS, _HEAD, _UP, _KEY_WORDS = constexpr(HEADER_WORDS), constexpr(HEAD), constexpr(UP), constexpr(KEY_WORDS)
_ALL, _FULL_ALONE = constexpr(ALL_TILES), constexpr(FULL_TILES)


@jit
def _nearest(z, entries, slope, BITS: constexpr):
    """Codes of z's cells: the code of an interval of the grid, plus one beyond the interval's edge."""
    middle: constexpr = 2 << BITS
    last: constexpr = (4 << BITS) - 1
    u = L.minimum(L.maximum(number(z * slope + middle), 0.0), last)
    entry = L.load(entries + u.to(L.int32).to(L.uint32))
    edge = entry.to(L.int32).to(L.float32, bitcast=True)
    return (entry >> 32).to(L.int32) + (z >= edge).to(L.int32)


@jit
def send_blocks(
    x, words, message, codes_at, entries, points, slope, tiles, blocks, log,
    T: constexpr, BITS: constexpr, IS_FULL: constexpr,
):  # fmt: skip
    """Write codes and scales of a tile into a message, int32. x: float32[T] in any layout. words: of sign_words().

    codes_at: first word of the codes. entries, points, slope: as in PointTable.
    """
    inner: constexpr = rows(T, 0, 32)
    row = arange(T // 32, of_rows(inner))
    entry, there, within = blocks_of(tiles, blocks, row, log, IS_FULL)
    x = conv(x, flat(T, 0))
    norm = block_norms(x, there, log, T, IS_FULL)
    x = rotated(L.reshape(flip(conv(L.reshape(x, [T // 32, 32]), inner), words, T, 0), [T]), log, T, IS_FULL)
    z = conv(L.reshape(conv(x, flat(T, 0)), [T // 32, 32]), inner) * of_each(L.div_rn(1.0, norm), IS_FULL)
    code = _nearest(z, entries, slope, BITS)
    dot = block_sums(conv(L.reshape(z * L.load(points + code), [T]), flat(T, 0)), log, T, IS_FULL)
    code = L.where(of_each(is_finite(norm), IS_FULL), code, 0)
    _store_codes(
        message + codes_at, code_places(tiles, entry, there, within, BITS, IS_FULL), there, code, tiles, log, T, BITS,
        IS_FULL,
    )  # fmt: skip
    at = message + _HEADER_WORDS + scale_places(entry, there, IS_FULL)
    if IS_FULL:
        L.store(at, block_scales(norm, dot, T * 1.0).to(L.int32, bitcast=True))
    else:
        size = ((row * 0 + 1) << log).to(L.float32)
        L.store(at, block_scales(norm, dot, size).to(L.int32, bitcast=True), there & (within == 0))


@jit
def _store_codes(
    stream, halves, there, code, tiles, log, T: constexpr, BITS: constexpr, IS_FULL: constexpr
):  # fmt: skip
    """Pack the codes of rows, int32[T / 32, 32], into a stream of words. halves: of code_places()."""
    packed, row = row_words(code.to(L.uint32), T // 32, BITS), ()
    for k in L.static_range(BITS):
        row = row + (conv(packed[k], of_rows(rows(T, 0, 32))),)  # type: ignore[assignment]
    if IS_FULL:
        store_rows(stream, halves >> 1, there, row, BITS)
    else:
        if is_halved(tiles):
            store_halved_rows(stream, halves, there, L.where(there, log, 0) > 4, row, BITS)
        else:
            store_rows(stream, halves >> 1, there, row, BITS)


@jit
def _encode_tile(
    gradient, sent, message_words, codes_at, keys, round, entries, points, slope, tiles, blocks, holes,
    T: constexpr, BITS: constexpr, IS_FULL: constexpr,
):  # fmt: skip
    log, owner = log_of(tiles), owner_of(tiles)
    LAST: constexpr = last_part(T)
    first, distance, inside = coordinates_of(tiles, blocks, holes, log, T, LAST, IS_FULL)
    at = gradient + first + distance
    x = L.load(at) if IS_FULL else L.load(at, inside, 0.0)
    words = sign_words(keys + owner * _KEY_WORDS, round, tiles, blocks, log, _UP, T, IS_FULL)
    send_blocks(
        L.reshape(x.to(L.float32), [T]), words, sent + owner * message_words, codes_at, entries, points, slope, tiles,
        blocks, log, T, BITS, IS_FULL,
    )  # fmt: skip


@jit
def _write_headers(sent, message_words, owners, begun, number, round31, round, largest, complement, T: constexpr):
    L.store(begun, number)
    L.store(begun + 1, round31)
    L.store(begun + 2, round)
    for first in range(0, owners, _HEAD):
        i = first + arange(_HEAD, streamed(_HEAD, warps(T), 1))
        at = sent + i.to(L.int64) * message_words
        L.store(at, i * 0 + largest, i < owners)
        L.store(at + 1, i * 0 + complement, i < owners)
        L.store(at + 2, i * 0, i < owners)
        L.store(at + 3, i * 0, i < owners)


@jit
def _send_exact(gradient, sent, places, index, count, program, T: constexpr):
    """Write a program's exact values: words places[count] of `sent` = gradient[index], float32."""
    i = program * _HEAD + arange(_HEAD, streamed(_HEAD, warps(T), 1))
    value = L.load(gradient + L.load(index + i, i < count, 0), i < count, 0.0).to(L.float32)
    L.store(sent + L.load(places + i, i < count, 0), value.to(L.int32, bitcast=True), i < count)


@jit(do_not_specialize=["message_words", "codes_at", "owners", "number", "round31", "round", "largest", "complement",
                        "exact_count", "programs"],
     do_not_specialize_on_alignment=["begun"])  # fmt: skip
def encode_nearest_kernel(
    gradient, sent, message_words, codes_at, owners, keys, begun, number, round31, round, largest, complement, entries,
    points, slope, exact_places, exact_index, exact_count, programs, tiles, blocks, holes,
    T: constexpr, BITS: constexpr, KIND: constexpr,
):  # fmt: skip
    """One tile: codes and scales, in the messages to all owners. Programs from `programs` on: the rest of the messages.

    gradient: float32, float16 or bfloat16. sent: int32[owners, message_words], as in NearestBatch. keys: int32[owners,
    5], as in nearest_blocks. begun: int32[3], becomes number, round31 and round. exact_places, exact_index:
    int64[exact_count], words of `sent` and coordinates of the gradient. tiles, blocks, holes, KIND: as in BlockTiles.
    """
    program = L.program_id(0)
    if program >= programs:
        if program == programs:
            _write_headers(
                sent, message_words, owners, begun, number, round31, round, largest, complement, T
            )  # fmt: skip
        _send_exact(gradient, sent, exact_places, exact_index, exact_count, program - programs, T)
    else:
        unsigned = round.to(L.uint32, bitcast=True)
        if KIND == _ALL:
            if is_full(tiles):
                _encode_tile(
                    gradient, sent, message_words, codes_at, keys, unsigned, entries, points, slope, tiles, blocks,
                    holes, T, BITS, True,
                )  # fmt: skip
            else:
                _encode_tile(
                    gradient, sent, message_words, codes_at, keys, unsigned, entries, points, slope, tiles, blocks,
                    holes, T, BITS, False,
                )  # fmt: skip
        else:
            alone: constexpr = KIND == _FULL_ALONE
            _encode_tile(
                gradient, sent, message_words, codes_at, keys, unsigned, entries, points, slope, tiles, blocks, holes,
                T, BITS, alone,
            )  # fmt: skip
