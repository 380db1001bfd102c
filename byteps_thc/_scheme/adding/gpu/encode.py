"""Encode: residual added, rotated, clamped, quantized, packed; the error rotated back: one pass over device memory.

tests/lib/reference.py (rotate, quantize, pack, inverse_rotate) is the oracle, to the bit.
"""

from byteps_thc._scheme.adding.gpu.norms import load_carried
from byteps_thc._scheme.adding.gpu.rotation import block_of, hadamard
from byteps_thc._scheme.adding.gpu.tiles import (
    ALL_TILES,
    ODD_TILES,
    first_block_of,
    first_of,
    is_odd,
    rest_of,
    there_of,
)
from byteps_thc._scheme.gpu.frontend import (
    L,
    arange,
    choose,
    constexpr,
    conv,
    exceeds,
    jit,
    lowest_byte,
    magic_lower,
    magic_upper,
    number,
)
from byteps_thc._scheme.gpu.layouts import consecutive, flat, last_part, of_rows, rows, streamed, warps
from byteps_thc._scheme.gpu.random_bits import flip, key_word, rounding_words, sign_words

RANGES_WARPS = constexpr(8)
_BLOCKS = constexpr(2048)
_ALL, _ODD_ALONE = constexpr(ALL_TILES), constexpr(ODD_TILES)


@jit(do_not_specialize=["blocks"], do_not_specialize_on_alignment=["max_norms"])
def ranges_kernel(norms, max_norms, ranges, keep, clamped, energy, threshold, granularity, largest, blocks):
    """Parameters of encode_kernel for a partition; one program, before it.

    norms, max_norms: float32[blocks]. ranges: float32[blocks, 4], (limit, step, scale, half) of clamp_range.h, or
    (infinity, .., 0, 0), which makes all codes 0, if the max norm is not finite. keep: int32, whether all norms and max
    norms are at most `largest`. clamped: int64, becomes 0. energy: float64, sum of the squared norms.
    """
    fits = arange(_BLOCKS, streamed(_BLOCKS, RANGES_WARPS, 1)) * 0 + 1
    squares = fits.to(L.float64) * 0.0
    for first in range(0, blocks, _BLOCKS):
        i = first + arange(_BLOCKS, streamed(_BLOCKS, RANGES_WARPS, 1))
        inside = i < blocks
        norm = L.load(norms + i, inside, 0.0)
        max_norm = L.load(max_norms + i, inside, 0.0)
        fits &= ((norm <= largest) & (max_norm <= largest)).to(L.int32)
        squares += norm.to(L.float64) * norm.to(L.float64)
        limit = threshold * max_norm
        finite = 2.0 * limit < float("inf")
        scale = L.div_rn(granularity * 0.5, limit)
        at = ranges + 4 * i
        L.store(at, L.where(finite, limit, float("inf")), inside)
        L.store(at + 1, L.div_rn(2.0 * limit, granularity), inside)
        L.store(at + 2, L.where(finite & (scale < float("inf")), scale, 0.0), inside)
        L.store(at + 3, L.where(finite, granularity * 0.5, 0.0), inside)
    L.store(keep, L.min(fits, 0))
    L.store(clamped, L.min(fits, 0).to(L.int64) * 0)
    L.store(energy, L.sum(squares, 0))


@jit
def _interval(entries, values, cell, WIDE: constexpr):
    """(2^16 / gap, lower value, upper value, code << 8) of a grid cell's interval; other bits of the code differ."""
    entry = L.load(entries + cell.to(L.uint32))
    inverse_gap = entry.to(L.int32).to(L.float32, bitcast=True)
    word = (entry >> 32).to(L.int32)
    if WIDE:
        return inverse_gap, L.load(values + (word >> 8)), L.load(values + (word >> 8) + 1), word
    return inverse_gap, lowest_byte(word), (word & -65536).to(L.float32, bitcast=True), word


@jit
def _quantize(x, chance, entries, values, clamp, WIDE: constexpr):
    """(code << 8 in a word, factor * error) of rotated coordinates; chance: 2^23 + 16 rounding bits, float32."""
    limit, step, scale, half, factor = clamp
    u = L.minimum(L.maximum(number(x * scale + half), 0.0), half + half)
    inverse_gap, lower, upper, code = _interval(entries, values, u.to(L.int32), WIDE)
    value, code = choose(chance - 8388607.5, (u - lower) * inverse_gap, lower, upper, code)
    return code, (x - (value * step - limit)) * factor


@jit
def _quantize_pairs(even, odd, bits, phase, entries, values, clamp, BITS: constexpr, WIDE: constexpr):
    """(codes of pairs << 8, most significant first, errors of even and odd, number of clamped ones) of a quarter."""
    limit = clamp[0]
    beyond = exceeds(even, limit) + exceeds(odd, limit)
    code0, even = _quantize(even, magic_lower(bits + phase), entries, values, clamp, WIDE)
    code1, odd = _quantize(odd, magic_upper(bits + (phase << 16)), entries, values, clamp, WIDE)
    most: constexpr = ((1 << BITS) - 1) << 8
    return ((code0 & most) << BITS) | (code1 & most), even, odd, beyond


@jit
def _quarters(x, T: constexpr):
    """[T / 32, 16] as four of [T / 32, 4]: few coordinates at a time, so that all values fit registers."""
    a, b = L.split(L.permute(L.reshape(x, [T // 32, 2, 2, 4]), (0, 3, 1, 2)))
    a0, a1 = L.split(a)
    b0, b1 = L.split(b)
    layout: constexpr = rows(T, 0, 4)
    return conv(a0, layout), conv(b0, layout), conv(a1, layout), conv(b1, layout)


@jit
def _whole(x0, x1, x2, x3, T: constexpr):
    x = L.join(L.join(x0, x2), L.join(x1, x3))
    return L.reshape(L.permute(x, (0, 2, 3, 1)), [T // 32, 16])


@jit
def _store_codes(pairs, codes, first, rest, T: constexpr, BITS: constexpr, TAIL: constexpr):
    pairs = L.reshape(pairs >> 8, [T // 2])
    if BITS == 8:
        _store_bytes(pairs, codes + first, rest, T, T // 2, 2, TAIL)
    elif BITS == 4:
        _store_bytes(pairs, codes + first // 2, rest // 2, T, T // 2, 1, TAIL)
    else:
        a, b = L.split(L.reshape(pairs, [T // 4, 2]))
        fours = (a << (2 * BITS)) | b
        if BITS == 2:
            _store_bytes(fours, codes + first // 4, rest // 4, T, T // 4, 1, TAIL)
        else:
            a, b = L.split(L.reshape(fours if BITS < 4 else fours.to(L.int64), [T // 8, 2]))
            eights = (a << (4 * BITS)) | b
            _store_bytes(eights, codes + first // 8 * BITS, rest // 8 * BITS, T, T // 8, BITS, TAIL)


@jit
def _store_bytes(numbers, at, limit, T: constexpr, N: constexpr, BYTES: constexpr, TAIL: constexpr):
    """Store the lower BYTES bytes of each of N numbers, upper ones first; TAIL: the first `limit` bytes."""
    layout: constexpr = consecutive(T, N)
    numbers = conv(numbers, layout)
    for k in L.static_range(BYTES):
        place = arange(N, layout) * BYTES + k
        byte = (numbers >> (8 * (BYTES - 1 - k))).to(L.uint8)
        if TAIL:
            L.store(at + place, byte, place < limit)
        else:
            L.store(at + place, byte)


@jit
def _encode_tile(
    gradient, residual, codes, ranges, entries, values, key, keep, clamped, tiles,
    LOG: constexpr, T: constexpr, BITS: constexpr, WIDE: constexpr, ADD: constexpr, KEEP: constexpr,
    ODD: constexpr,
):  # fmt: skip
    rest = rest_of(tiles) if ODD else T
    LAST: constexpr = last_part(T)
    i = arange(T, flat(T, LAST))
    first = first_of(tiles)
    inside = there_of(i, tiles, T, ODD)
    x = load_carried(gradient + first + i, residual + first + i, inside, ADD, ODD)
    words = sign_words(key, first, T, warps(T))
    x = conv(L.reshape(conv(x, flat(T, 0)), [T // 32, 32]), rows(T, 0, 32))
    x = hadamard(L.reshape(flip(x, words, T, 0), [T]), rest, LOG, T, ODD)
    pairs: constexpr = rows(T, 0, 4)
    first_block = first_block_of(tiles)
    if (1 << LOG) == T and not ODD:
        at = ranges + first_block * 4
        factor = 1.0 / T
        limit, step, scale, half = L.load(at), L.load(at + 1), L.load(at + 2), L.load(at + 3)
    else:
        row = arange(T // 32, of_rows(pairs)) * 32
        block, factor = block_of(row, rest, LOG, ODD)
        at = L.expand_dims(ranges + first_block * 4 + block * 4, 1)
        used = L.expand_dims(row < rest, 1)
        factor = L.expand_dims(factor, 1)
        limit, step = L.load(at, used, 0.0), L.load(at + 1, used, 0.0)
        scale, half = L.load(at + 2, used, 0.0), L.load(at + 3, used, 0.0)
    bits0, bits1, bits2, bits3 = _quarters(rounding_words(key, first, T), T)
    even, odd = L.split(L.reshape(conv(x, flat(T, 0)), [T // 32, 16, 2]))
    even0, even1, even2, even3 = _quarters(even, T)
    odd0, odd1, odd2, odd3 = _quarters(odd, T)
    phase = key_word(key, 5)
    entries += L.load(key + 6)  # from memory, so that the address stays in registers
    clamp = (limit, step, scale, half, factor)
    codes0, even0, odd0, beyond0 = _quantize_pairs(even0, odd0, bits0, phase, entries, values, clamp, BITS, WIDE)
    codes1, even1, odd1, beyond1 = _quantize_pairs(even1, odd1, bits1, phase, entries, values, clamp, BITS, WIDE)
    codes2, even2, odd2, beyond2 = _quantize_pairs(even2, odd2, bits2, phase, entries, values, clamp, BITS, WIDE)
    codes3, even3, odd3, beyond3 = _quantize_pairs(even3, odd3, bits3, phase, entries, values, clamp, BITS, WIDE)
    beyond = L.sum(L.sum(beyond0 + beyond1 + beyond2 + beyond3, 1), 0).to(L.int64)
    # Loaded as late as here, so that no register holds it all the time.
    place = first_of(tiles)
    _store_codes(_whole(codes0, codes1, codes2, codes3, T), codes, place, rest, T, BITS, ODD)
    even = _whole(even0, even1, even2, even3, T)
    odd = _whole(odd0, odd1, odd2, odd3, T)
    if KEEP:
        # A masked store and no branch: the compiler would move the computation of the errors into it.
        kept = L.load(keep) * T
        e = hadamard(L.reshape(L.join(even, odd), [T]), rest, LOG, T, ODD)
        e = conv(L.reshape(e, [T // 32, 32]), rows(T, LAST, 32))
        e = conv(L.reshape(flip(e, words, T, LAST), [T]), flat(T, LAST))
        at = residual + first_of(tiles) + i
        L.store(at, e, there_of(i, tiles, T, ODD) & (i < kept) if ODD else i < kept)
    L.atomic_add(clamped, beyond)  # last: the compiler then spills fewer registers


@jit(do_not_specialize_on_alignment=["keep", "clamped"])
def encode_kernel(
    gradient, residual, codes, ranges, entries, values, key, keep, clamped, tiles,
    LOG: constexpr, T: constexpr, BITS: constexpr, WIDE: constexpr, ADD: constexpr, KEEP: constexpr,
    KIND: constexpr,
):  # fmt: skip
    """One tile: codes, and with KEEP and where *keep, its residual. ADD: residual is added to the gradient.

    residual: float32. ranges: float32[blocks, 4], of ranges_kernel. entries, values: as in DeviceTable. clamped: int64,
    counts coordinates beyond the clamp. tiles, KIND: words of a TileTable, and its kinds of tiles: the few odd ones
    take a slower path.
    """
    if KIND == _ALL:
        if is_odd(tiles):
            _encode_tile(
                gradient, residual, codes, ranges, entries, values, key, keep, clamped, tiles,
                LOG, T, BITS, WIDE, ADD, KEEP, True,
            )  # fmt: skip
        else:
            _encode_tile(
                gradient, residual, codes, ranges, entries, values, key, keep, clamped, tiles,
                LOG, T, BITS, WIDE, ADD, KEEP, False,
            )  # fmt: skip
    else:
        odd: constexpr = KIND == _ODD_ALONE
        _encode_tile(
            gradient, residual, codes, ranges, entries, values, key, keep, clamped, tiles,
            LOG, T, BITS, WIDE, ADD, KEEP, odd,
        )  # fmt: skip
