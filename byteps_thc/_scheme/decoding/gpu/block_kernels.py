"""Kernels of ranks: gradient to messages, received messages to the own one, messages to averages.

A program has two tiles a warp. The last programs have exact values instead, and the first of the last ones headers.
"""

from byteps_thc._base.limits import LARGEST_WORD
from byteps_thc._scheme.block_plan import BLOCK
from byteps_thc._scheme.decoding.codec import DAMAGED, HEADER_BYTES
from byteps_thc._scheme.decoding.gpu.block_codes import flip, put_codes, random_words, rotated, values
from byteps_thc._scheme.decoding.gpu.block_tiles import (
    WARPS,
    load_blocks,
    own,
    owner_of,
    places,
    store_blocks,
    streaming,
)
from byteps_thc._scheme.gpu.frontend import L, arange, cast, constexpr, conv, jit
from byteps_thc._scheme.gpu.layouts import of_columns, streamed
from byteps_thc._scheme.rounding import DOWN_SIGN_DOMAIN

#: Words of the numbers of a launch, `fixed`: programs with tiles, exact values, messages, ranks of an average, 2^32 /
#: ranks; seed (lower, upper half), tensor, shift of the own rank's random numbers; coordinates before the next owner's
#: row; a message's size, and 16 bytes before codes, 8 bytes before scales, as in put_codes(); the last two for the own
#: averages.
FIXED = (
    "programs", "exact", "messages", "ranks", "spacing", "seed", "seed_high", "tensor", "shift", "row", "size",
    "codes_at", "scales_at", "own_codes_at", "own_scales_at",
)  # fmt: skip
#: Words of `begun`: number and round of the gradient, random numbers up, down, sum of the bits of the last average.
UP, DOWN, DIGEST, BEGUN_WORDS = 2, 6, 10, 11
#: Exact values of a program.
HEAD = 256 * WARPS
(
    _PROGRAMS, _EXACT, _MESSAGES, _RANKS, _SPACING, _SEED, _SEED_HIGH, _TENSOR, _SHIFT, _ROW, _SIZE, _CODES_AT,
    _SCALES_AT, _OWN_CODES_AT, _OWN_SCALES_AT,
) = (constexpr(word) for word in range(len(FIXED)))  # fmt: skip
_UP, _DOWN, _DIGEST, _HEAD, _W, _BLOCK = (constexpr(n) for n in (UP, DOWN, DIGEST, HEAD, WARPS, BLOCK))
_HEADER_WORDS, _DOWN_DOMAIN, _DAMAGED = constexpr(HEADER_BYTES // 4), constexpr(DOWN_SIGN_DOMAIN), constexpr(DAMAGED)
_LARGEST_WORD = constexpr(LARGEST_WORD)


@jit
def _fixed(fixed, word: constexpr):
    return L.load(fixed + word)


@jit
def _unsigned(words, word: constexpr):
    return L.load(words + word).to(L.uint32, bitcast=True)


@jit
def _words(messages):
    return messages.to(L.pointer_type(L.int32), bitcast=True)


@jit
def _words_of_hop(fixed, round, DOMAIN: constexpr):
    seed, seed_high, tensor = _unsigned(fixed, _SEED), _unsigned(fixed, _SEED_HIGH), _unsigned(fixed, _TENSOR)
    return random_words(seed, seed_high, tensor, round.to(L.uint32, bitcast=True), seed * 0 + DOMAIN)


@jit
def _write_headers(sent, fixed, begun, number, round31, round, largest, complement):
    L.store(begun, number)
    L.store(begun + 1, round31)
    up, down = _words_of_hop(fixed, round, 0), _words_of_hop(fixed, round, _DOWN_DOMAIN)
    for k in L.static_range(4):
        L.store(begun + _UP + k, up[k].to(L.int32, bitcast=True))
        L.store(begun + _DOWN + k, down[k].to(L.int32, bitcast=True))
    total = _unsigned(begun, _DIGEST)
    digest = ((total ^ (total >> 31)) & _LARGEST_WORD).to(L.int32, bitcast=True)
    L.store(begun + _DIGEST, 0)
    messages = _fixed(fixed, _MESSAGES)
    for first in range(0, messages, _HEAD):
        i = first + arange(_HEAD, streamed(_HEAD, _W, 1))
        at = _words(sent) + i.to(L.int64) * _fixed(fixed, _SIZE) * 4
        L.store(at, i * 0 + largest, i < messages)
        L.store(at + 1, i * 0 + complement, i < messages)
        L.store(at + 2, i * 0 + digest, i < messages)
        L.store(at + 3, (digest ^ _LARGEST_WORD) - i * 0, i < messages)


@jit
def _exact_values(program):
    return program * _HEAD + arange(_HEAD, streamed(_HEAD, _W, 1))


@jit
def _largest_words(messages, fixed, FIRST: constexpr):
    """The largest of each of two words of all messages, beginning with word FIRST."""
    i, count = arange(_HEAD, streamed(_HEAD, _W, 1)), _fixed(fixed, _MESSAGES)
    first, second = i * 0, i * 0
    for start in range(0, count, _HEAD):
        there = i + start < count
        at = _words(messages) + (i + start).to(L.int64) * _fixed(fixed, _SIZE) * 4 + FIRST
        first = L.maximum(first, L.load(at, there, 0))
        second = L.maximum(second, L.load(at + 1, there, 0))
    return L.max(first, 0), L.max(second, 0)


@jit
def _exact_averages(messages, fixed, places, there):
    """Averages over ranks of the float32 in words `places` of the first rank's message."""
    ranks, at = _fixed(fixed, _RANKS), _words(messages) + places
    total = L.load(at, there, 0).to(L.float32, bitcast=True)
    for _ in range(1, ranks):
        at += _fixed(fixed, _SIZE).to(L.int64) * 4
        total += L.load(at, there, 0).to(L.float32, bitcast=True)
    return L.div_rn(total, ranks.to(L.float32))


@jit
def _differ(messages, fixed, begun, state, differ, note):
    """Whether ranks differ, now or before. note: keep the result and the first differing header, else the last."""
    before = L.load(differ).to(L.int32) != 0
    largest, complement = _largest_words(messages, fixed, 0)
    # Owners have the maxima over all ranks. A rank's own words, in a message up, never differ.
    digest, rest = L.load(_words(messages) + 2), L.load(_words(messages) + 3)
    same = largest.to(L.int64) + complement.to(L.int64) == _LARGEST_WORD
    damaged = same & (digest.to(L.int64) + rest.to(L.int64) > _LARGEST_WORD)
    largest, complement = L.where(damaged, digest, largest), L.where(damaged, rest, complement)
    now = before | (largest.to(L.int64) + complement.to(L.int64) != _LARGEST_WORD)
    if note:  # programs may read and write at once: the values are the same for all
        L.store(state, L.where(before, L.load(state), L.load(begun) + damaged.to(L.int32) * _DAMAGED))
        L.store(state + 1, L.where(before, L.load(state + 1), L.load(begun + 1)))
        L.store(state + 2, L.where(before, L.load(state + 2), largest))
        L.store(state + 3, L.where(before, L.load(state + 3), complement))
        L.store(differ, now.to(differ.dtype.element_ty))
    return now


@jit
def _add_bits(begun, sums):
    """Add to the digest of the average; sums: int32[n]. The order of programs does not matter."""
    L.atomic_add(begun + _DIGEST, L.sum(sums, 0), sem="relaxed")


@jit
def _average(messages, fixed, begun, owner, place, spoiled, HOP: constexpr, BITS: constexpr):
    """The averages of blocks, rotated, without their signs, in own(). HOP: UP or DOWN, the place in begun."""
    ranks, size_bytes = _fixed(fixed, _RANKS), _fixed(fixed, _SIZE).to(L.int64) * 16
    message, codes_at, scales_at = messages + owner * size_bytes, _fixed(fixed, _CODES_AT), _fixed(fixed, _SCALES_AT)
    levels, divisor = _unsigned(begun, HOP + 2), (ranks * _BLOCK).to(L.float32)
    total = values(levels, place, (message, codes_at, scales_at), divisor, spoiled, BITS)
    if HOP == _UP:
        for _ in range(1, ranks):
            message += size_bytes
            levels += _unsigned(fixed, _SPACING)
            total += values(levels, place, (message, codes_at, scales_at), divisor, spoiled, BITS)
    return rotated(total)


@jit(do_not_specialize=["number", "round31", "round", "largest", "complement"],
     do_not_specialize_on_alignment=["fixed", "begun"])  # fmt: skip
def encode_blocks_kernel(
    gradient, sent, fixed, begun, number, round31, round, largest, complement, exact, tiles, words, BITS: constexpr
):  # fmt: skip
    """Codes and scales of a gradient, in the messages to all owners; headers and exact values.

    gradient: float32, float16 or bfloat16. sent: uint8[messages, 16 * size]. fixed: int32[15]. begun: int32[11], gets
    number, round31 and the random numbers of the round; its digest moves to the headers. exact: int64[2, exact], of
    each exact value its word in `sent` and its coordinate. tiles, words: of BlockTiles.
    """
    program, programs = L.program_id(0), _fixed(fixed, _PROGRAMS)
    if program >= programs:
        if program == programs:
            _write_headers(sent, fixed, begun, number, round31, round, largest, complement)
        i, count = _exact_values(program - programs), _fixed(fixed, _EXACT)
        value = L.load(gradient + L.load(exact + count + i, i < count, 0), i < count, 0.0).to(L.float32)
        L.store(_words(sent) + L.load(exact + i, i < count, 0), value.to(L.int32, bitcast=True), i < count)
    else:
        low, high, levels, chances = _words_of_hop(fixed, round, 0)
        owner, shift = owner_of(tiles), _unsigned(fixed, _SHIFT)
        x = load_blocks(gradient + owner * _unsigned(fixed, _ROW).to(L.int64), tiles, words)
        y = rotated(conv(flip(x, low, high, streaming()), own()))
        block, index, _, exists = places(tiles, words)
        message = (sent + owner * _fixed(fixed, _SIZE) * 16, _fixed(fixed, _CODES_AT), _fixed(fixed, _SCALES_AT))
        put_codes(y, (levels + shift, chances + shift), (block, index, exists), message, BITS)


@jit(do_not_specialize_on_alignment=["fixed", "begun"])
def recode_blocks_kernel(received, own_message, fixed, begun, tiles, words, BITS: constexpr, DOWN_BITS: constexpr):
    """The averages of the own shard as codes of DOWN_BITS bits in the own message; its header and exact values.

    received: uint8[messages, 16 * size]. own_message: uint8. encode_blocks_kernel describes the rest.
    """
    program, programs = L.program_id(0), _fixed(fixed, _PROGRAMS)
    if program >= programs:
        if program == programs:
            for word in L.static_range(0, 4, 2):
                largest, complement = _largest_words(received, fixed, word)
                L.store(_words(own_message) + word, largest)
                L.store(_words(own_message) + word + 1, complement)
        i, count = _exact_values(program - programs), _fixed(fixed, _EXACT)
        value = _exact_averages(received, fixed, _HEADER_WORDS + i, i < count)
        L.store(_words(own_message) + _HEADER_WORDS + i, value.to(L.int32, bitcast=True), i < count)
    else:
        block, index, used, exists = places(tiles, words)
        place = (block, index, exists)
        x = _average(received, fixed, begun, owner_of(tiles), place, False, _UP, BITS)
        low = _unsigned(begun, _UP) ^ _unsigned(begun, _DOWN)
        high = _unsigned(begun, _UP + 1) ^ _unsigned(begun, _DOWN + 1)
        column = L.expand_dims(arange(_BLOCK, of_columns(own())), 0)
        y = rotated(flip(L.where(column < L.expand_dims(used, 1), x, 0.0), low, high, own()))
        random = (_unsigned(begun, _DOWN + 2), _unsigned(begun, _DOWN + 3))
        message = (own_message, _fixed(fixed, _OWN_CODES_AT), _fixed(fixed, _OWN_SCALES_AT))
        put_codes(y, random, place, message, DOWN_BITS)


@jit(do_not_specialize_on_alignment=["fixed", "begun", "state", "differ"])
def decode_blocks_kernel(
    messages, out, fixed, begun, state, differ, exact, tiles, words, HOP: constexpr, BITS: constexpr, GATHER: constexpr
):  # fmt: skip
    """Averages, NaN if ranks differ; their digest, but of the own row, which no other rank has.

    messages: uint8[messages, 16 * size], of all owners, or (HOP = UP) of all ranks for the own row, or (GATHER) of a
    gather. out: float32, float16 or bfloat16. state: int32[4], differ: a byte, of DeviceAgreement.
    encode_blocks_kernel describes the rest.
    """
    program, programs = L.program_id(0), _fixed(fixed, _PROGRAMS)
    spoiled = _differ(messages, fixed, begun, state, differ, program == programs)
    if program >= programs:
        i, count = _exact_values(program - programs), _fixed(fixed, _EXACT)
        value = _exact_averages(messages, fixed, L.load(exact + i, i < count, 0), i < count)
        value = L.where(spoiled, float("nan"), value)
        L.store(out + L.load(exact + count + i, i < count, 0), cast(value, out.dtype.element_ty), i < count)
        if HOP == _DOWN:
            _add_bits(begun, L.where(i < count, value, 0.0).to(L.int32, bitcast=True))
    else:
        block, index, _, exists = places(tiles, words)
        x = _average(messages, fixed, begun, owner_of(tiles), (block, index, exists), spoiled, HOP, BITS)
        x = flip(conv(x, streaming()), _unsigned(begun, HOP), _unsigned(begun, HOP + 1), streaming())
        if GATHER:
            out += owner_of(tiles) * _unsigned(fixed, _ROW).to(L.int64)
        store_blocks(out, tiles, words, x)
        if HOP == _DOWN:
            _add_bits(begun, L.sum(x.to(L.int32, bitcast=True), 0))
