"""Codes of ranks to averages, by all ranks, or by the owner of a shard, which rounds them again for the way down.

nearest_reference.decode and recode are the oracles, to the bit.
"""

from __future__ import annotations

from byteps_thc._scheme.gpu.frontend import L, arange, cast, constexpr, conv, jit
from byteps_thc._scheme.gpu.layouts import last_part, of_rows, rows, streamed, warps
from byteps_thc._scheme.gpu.nearest_blocks import DOWN, KEY_WORDS, UP, of_each, rotated, sign_words
from byteps_thc._scheme.gpu.nearest_encode import HEAD, HEADER_WORDS, send_blocks
from byteps_thc._scheme.gpu.nearest_tiles import (
    blocks_of,
    code_places,
    coordinates_of,
    is_full,
    is_halved,
    log_of,
    owner_of,
    scale_places,
    without_padding,
)
from byteps_thc._scheme.gpu.packing import load_halved_rows, load_rows, unpacked
from byteps_thc._scheme.gpu.random_bits import flip
from byteps_thc._scheme.gpu.tiles import ALL_TILES, FULL_TILES

_HEADER_WORDS, _HEAD, _UP, _DOWN = constexpr(HEADER_WORDS), constexpr(HEAD), constexpr(UP), constexpr(DOWN)
_KEY_WORDS, _ALL, _FULL_ALONE = constexpr(KEY_WORDS), constexpr(ALL_TILES), constexpr(FULL_TILES)


@jit
def _codes(stream, halves, there, halved, log, T: constexpr, BITS: constexpr, IS_FULL: constexpr):
    """The codes of rows of a stream of words, uint32[T / 32, 32]. halves: of code_places()."""
    if IS_FULL:
        row = load_rows(stream, halves >> 1, there, BITS)
    else:
        if halved:
            row = load_halved_rows(stream, halves, there, L.where(there, log, 0) > 4, BITS)
        else:
            row = load_rows(stream, halves >> 1, there, BITS)
    return conv(unpacked(row, T // 32, BITS), rows(T, 0, 32))


@jit
def _values(
    stream, halves, scales, there, points, ranks, inverse, halved, log,
    T: constexpr, BITS: constexpr, IS_FULL: constexpr,
):  # fmt: skip
    """(decoded values of one rank, divided by ranks and by the size of blocks; whether scales are not 0)."""
    scale = L.load(scales) if IS_FULL else L.load(scales, there, 0)
    scale = scale.to(L.float32, bitcast=True)
    code = _codes(stream, halves, there, halved, log, T, BITS, IS_FULL)
    factor = L.div_rn(scale, ranks.to(L.float32)) * inverse
    return L.load(points + code.to(L.int32)) * of_each(factor, IS_FULL), (scale != 0.0).to(L.int32)


@jit
def _average(
    message, message_words, codes_at, ranks, points, words, tiles, blocks, log,
    T: constexpr, BITS: constexpr, SEVERAL: constexpr, IS_FULL: constexpr,
):  # fmt: skip
    """The averages of a tile, float32[T / 32, 32] in rows(T, last part, 32), from messages of `ranks` ranks."""
    inner: constexpr = rows(T, 0, 32)
    LAST: constexpr = last_part(T)
    outer: constexpr = rows(T, LAST, 32)
    row = arange(T // 32, of_rows(inner))
    entry, there, within = blocks_of(tiles, blocks, row, log, IS_FULL)
    codes, halves = message + codes_at, code_places(tiles, entry, there, within, BITS, IS_FULL)
    scales = message + _HEADER_WORDS + scale_places(entry, there, IS_FULL)
    halved = is_halved(tiles)
    inverse = 1.0 / T if IS_FULL else L.div_rn(1.0, ((row * 0 + 1) << log).to(L.float32))
    total, used = _values(codes, halves, scales, there, points, ranks, inverse, halved, log, T, BITS, IS_FULL)
    if SEVERAL:
        for _ in range(1, ranks):
            codes += message_words
            scales += message_words
            points += 1 << BITS
            value, used_here = _values(
                codes, halves, scales, there, points, ranks, inverse, halved, log, T, BITS, IS_FULL
            )  # fmt: skip
            total += value
            used |= used_here
    x = rotated(L.reshape(total, [T]), log, T, IS_FULL)
    x = flip(conv(L.reshape(x, [T // 32, 32]), outer), words, T, LAST)
    used = used if IS_FULL else conv(used, of_rows(outer))
    return L.where(of_each(used != 0, IS_FULL), x, 0.0)


@jit
def _largest_words(messages, message_words, count, T: constexpr):
    i = arange(_HEAD, streamed(_HEAD, warps(T), 1))
    first, second = i * 0, i * 0
    for start in range(0, count, _HEAD):
        there = i + start < count
        at = messages + (i + start).to(L.int64) * message_words
        first = L.maximum(first, L.load(at, there, 0))
        second = L.maximum(second, L.load(at + 1, there, 0))
    return L.max(first, 0), L.max(second, 0)


@jit
def _differ(messages, message_words, count, begun, state, differ, note, T: constexpr):
    """Whether ranks differ, now or before. note: keep the result and the first differing header, else the last."""
    before = L.load(differ).to(L.int32) != 0
    largest, complement = _largest_words(messages, message_words, count, T)
    now = before | (largest.to(L.int64) + complement.to(L.int64) != 0x7FFFFFFF)
    if note:  # programs may read and write at once: the values are the same for all
        L.store(state, L.where(before, L.load(state), L.load(begun)))
        L.store(state + 1, L.where(before, L.load(state + 1), L.load(begun + 1)))
        L.store(state + 2, L.where(before, L.load(state + 2), largest))
        L.store(state + 3, L.where(before, L.load(state + 3), complement))
        L.store(differ, now.to(differ.dtype.element_ty))
    return now


@jit
def _exact_averages(messages, message_words, ranks, places, count, program, T: constexpr):
    """(number, average over messages of `ranks` ranks at words places[count]) of a program's values."""
    i = program * _HEAD + arange(_HEAD, streamed(_HEAD, warps(T), 1))
    at = messages + L.load(places + i, i < count, 0)
    total = L.load(at, i < count, 0).to(L.float32, bitcast=True)
    for _ in range(1, ranks):
        at += message_words
        total += L.load(at, i < count, 0).to(L.float32, bitcast=True)
    return i, L.div_rn(total, ranks.to(L.float32))


@jit
def _decode_tile(
    messages, message_words, owner_words, codes_at, ranks, out, keys, begun, spoiled, points, tiles, blocks, holes,
    T: constexpr, BITS: constexpr, SEVERAL: constexpr, DOMAIN: constexpr, IS_FULL: constexpr,
):  # fmt: skip
    log, owner = log_of(tiles), owner_of(tiles)
    round = L.load(begun + 2).to(L.uint32, bitcast=True)
    words = sign_words(keys + owner * _KEY_WORDS, round, tiles, blocks, log, DOMAIN, T, IS_FULL)
    x = _average(
        messages + owner * owner_words, message_words, codes_at, ranks, points, words, tiles, blocks, log, T, BITS,
        SEVERAL, IS_FULL,
    )  # fmt: skip
    x = cast(L.where(spoiled, float("nan"), x), out.dtype.element_ty)
    first, distance, inside = coordinates_of(tiles, blocks, holes, log, T, last_part(T), IS_FULL)
    if IS_FULL:
        L.store(out + first + distance, x)
    else:
        L.store(out + first + distance, x, inside)


@jit(
    do_not_specialize=["message_words", "owner_words", "codes_at", "ranks", "owners", "exact_count", "programs"],
    do_not_specialize_on_alignment=["begun", "state", "differ"],
)
def decode_nearest_kernel(
    messages, message_words, owner_words, codes_at, ranks, owners, out, keys, begun, state, differ, points,
    exact_places, exact_index, exact_count, programs, tiles, blocks, holes,
    T: constexpr, BITS: constexpr, SEVERAL: constexpr, DOMAIN: constexpr, KIND: constexpr,
):  # fmt: skip
    """One tile of averages. Programs from `programs` on: exact values.

    messages: int32[owners, message_words]. Codes of a tile are from `ranks` ranks (SEVERAL: more than one), whose
    messages begin owner_words * owner words behind the first one. points: float32[ranks, 2^BITS]. out: float32, float16
    or bfloat16. begun: of encode_nearest_kernel. state: int32[4], differ: a byte, of DeviceAgreement: averages are NaN
    if ranks differ. DOMAIN: of the signs. encode_nearest_kernel describes the rest.
    """
    program = L.program_id(0)
    spoiled = _differ(messages, message_words, owners, begun, state, differ, program == programs, T)
    if program >= programs:
        i, value = _exact_averages(
            messages, message_words, ranks, exact_places, exact_count, program - programs, T
        )  # fmt: skip
        value = L.where(spoiled, float("nan"), value)
        at = out + L.load(exact_index + i, i < exact_count, 0)
        L.store(at, cast(value, out.dtype.element_ty), i < exact_count)
    else:
        if KIND == _ALL:
            if is_full(tiles):
                _decode_tile(
                    messages, message_words, owner_words, codes_at, ranks, out, keys, begun, spoiled, points, tiles,
                    blocks, holes, T, BITS, SEVERAL, DOMAIN, True,
                )  # fmt: skip
            else:
                _decode_tile(
                    messages, message_words, owner_words, codes_at, ranks, out, keys, begun, spoiled, points, tiles,
                    blocks, holes, T, BITS, SEVERAL, DOMAIN, False,
                )  # fmt: skip
        else:
            alone: constexpr = KIND == _FULL_ALONE
            _decode_tile(
                messages, message_words, owner_words, codes_at, ranks, out, keys, begun, spoiled, points, tiles,
                blocks, holes, T, BITS, SEVERAL, DOMAIN, alone,
            )  # fmt: skip


@jit
def _recode_tile(
    received, message_words, codes_at, ranks, own, own_codes_at, keys, begun, points, entries, own_points, slope, tiles,
    blocks, T: constexpr, BITS: constexpr, DOWN_BITS: constexpr, SEVERAL: constexpr, IS_FULL: constexpr,
):  # fmt: skip
    log = log_of(tiles)
    key, round = keys + owner_of(tiles) * _KEY_WORDS, L.load(begun + 2).to(L.uint32, bitcast=True)
    words = sign_words(key, round, tiles, blocks, log, _UP, T, IS_FULL)
    x = _average(received, message_words, codes_at, ranks, points, words, tiles, blocks, log, T, BITS, SEVERAL, IS_FULL)
    if not IS_FULL:
        x = without_padding(x, tiles, blocks, log, T, last_part(T))
    words = sign_words(key, round, tiles, blocks, log, _DOWN, T, IS_FULL)
    send_blocks(
        L.reshape(x, [T]), words, own, own_codes_at, entries, own_points, slope, tiles, blocks, log, T, DOWN_BITS,
        IS_FULL,
    )  # fmt: skip


@jit(
    do_not_specialize=["message_words", "codes_at", "ranks", "own_codes_at", "own_exact_at", "exact_count", "programs"],
    do_not_specialize_on_alignment=["begun"],
)
def recode_nearest_kernel(
    received, message_words, codes_at, ranks, own, own_codes_at, own_exact_at, keys, begun, points, entries, own_points,
    slope, exact_places, exact_count, programs, tiles, blocks,
    T: constexpr, BITS: constexpr, DOWN_BITS: constexpr, SEVERAL: constexpr, KIND: constexpr,
):  # fmt: skip
    """One tile of the own shard: the average of all ranks' codes, as codes of DOWN_BITS bits in the own message.

    received: int32[ranks, message_words]. own: int32, codes from word own_codes_at, exact values from own_exact_at on.
    points: float32[ranks, 2^BITS]; entries, own_points, slope: of the way down. Programs from `programs` on: exact
    values, and the largest words of all fingerprints. decode_nearest_kernel describes the rest.
    """
    program = L.program_id(0)
    if program >= programs:
        if program == programs:
            largest, complement = _largest_words(received, message_words, ranks, T)
            L.store(own, largest)
            L.store(own + 1, complement)
            L.store(own + 2, 0)
            L.store(own + 3, 0)
        i, value = _exact_averages(
            received, message_words, ranks, exact_places, exact_count, program - programs, T
        )  # fmt: skip
        L.store(own + own_exact_at + i, value.to(L.int32, bitcast=True), i < exact_count)
    else:
        if KIND == _ALL:
            if is_full(tiles):
                _recode_tile(
                    received, message_words, codes_at, ranks, own, own_codes_at, keys, begun, points, entries,
                    own_points, slope, tiles, blocks, T, BITS, DOWN_BITS, SEVERAL, True,
                )  # fmt: skip
            else:
                _recode_tile(
                    received, message_words, codes_at, ranks, own, own_codes_at, keys, begun, points, entries,
                    own_points, slope, tiles, blocks, T, BITS, DOWN_BITS, SEVERAL, False,
                )  # fmt: skip
        else:
            alone: constexpr = KIND == _FULL_ALONE
            _recode_tile(
                received, message_words, codes_at, ranks, own, own_codes_at, keys, begun, points, entries,
                own_points, slope, tiles, blocks, T, BITS, DOWN_BITS, SEVERAL, alone,
            )  # fmt: skip
