"""Signs, rotation and sums of the blocks of a tile, all of one size. tests/lib/nearest_reference.py is the oracle.

IS_FULL: the tile is one block, and values of a block are numbers; else a number for each row of 32 coordinates. Index
bits 0 to 3 are the lane in a vector of sums, bits from 4 on the vector. The smallest block has 2^4 coordinates, in the
lower half of a row; the upper half adds +0 or -0 to its sums.
"""

from __future__ import annotations

from byteps_thc._scheme.gpu.frontend import L, arange, constexpr, constexpr_function, conv, jit
from byteps_thc._scheme.gpu.layouts import end_stage, first_stage, flat, held, last_part, of_rows, rows, warps
from byteps_thc._scheme.gpu.nearest_tiles import blocks_of, is_halved, sign_places
from byteps_thc._scheme.gpu.random_bits import SIGN_ROUNDS, key_word, philox

#: Words of a key: seed (lower, upper half), tensor, domains of the signs up and down.
KEY_WORDS = 5
UP, DOWN = 3, 4
#: Norms of rounded blocks, whose squares are exact enough in float32 (nearest_scale.h).
_LEAST, _MOST = constexpr(2.0**-100), constexpr(2.0**100)


@constexpr_function
def _log(T):
    return T.bit_length() - 1


@jit
def of_each(value, IS_FULL: constexpr):
    """A block's value, for its coordinates."""
    return value if IS_FULL else L.expand_dims(value, 1)


@jit
def sign_words(key, round, tiles, blocks, log, DOMAIN: constexpr, T: constexpr, IS_FULL: constexpr):
    """uint32[T / 32]: bit c of word r is the sign of coordinate 32 r + c. DOMAIN: its word in the key."""
    row = arange(T // 32, of_rows(rows(T, 0, 32)))
    entry, there, within = blocks_of(tiles, blocks, row, log, IS_FULL)
    index = sign_places(entry, there, within, IS_FULL)
    word = _sign_word(key, round, index, DOMAIN)
    if not IS_FULL:
        if is_halved(tiles):
            both = (word >> 16) | (_sign_word(key, round, index + 1, DOMAIN) << 16)
            word = L.where((index & 1) == 1, both, word)
    return word


@jit
def _sign_word(key, round, index, DOMAIN: constexpr):
    """The 32 signs that include codes 16 index, ..; 128 are of a Philox block."""
    counter = (index >> 3).to(L.uint32)
    zero = counter * 0
    w0, w1, w2, w3 = philox(
        counter, zero + key_word(key, DOMAIN), zero + key_word(key, 2), zero + round, zero + key_word(key, 0),
        zero + key_word(key, 1), SIGN_ROUNDS,
    )  # fmt: skip
    is_odd, is_upper = (index & 2) != 0, (index & 4) != 0
    return L.where(is_upper, L.where(is_odd, w3, w2), L.where(is_odd, w1, w0))


@jit
def rotated(x, log, T: constexpr, IS_FULL: constexpr):
    """H x of the blocks. x: float32[T] in any layout; the result has the layout of the last part of T."""
    for part in L.static_range(last_part(T) + 1):
        x = conv(x, flat(T, part))
        for s in L.static_range(first_stage(part), end_stage(part, _log(T))):
            if IS_FULL or s < 4:
                x = _stage(x, s, T, part)
            else:
                if s < log:
                    x = _stage(x, s, T, part)
    return x


@jit
def _stage(x, S: constexpr, T: constexpr, PART: constexpr):
    a, b = L.split(L.permute(L.reshape(x, [T >> (S + 1), 2, 1 << S]), (0, 2, 1)))
    return conv(L.reshape(L.permute(L.join(a + b, a - b), (0, 2, 1)), [T]), flat(T, PART))


@jit
def _halved(x, N: constexpr, BIT: constexpr):
    """Sums of pairs in x[N] whose indices differ in a bit, which results lack."""
    a, b = L.split(L.permute(L.reshape(x, [N >> (BIT + 1), 2, 1 << BIT]), (0, 2, 1)))
    return L.reshape(a + b, [N // 2])


@jit
def _paired(x, N: constexpr, BIT: constexpr):
    """For each of x[N] its sum with the element whose index differs in a bit."""
    a, b = L.split(L.permute(L.reshape(x, [N >> (BIT + 1), 2, 1 << BIT]), (0, 2, 1)))
    return L.reshape(L.permute(L.join(a + b, a + b), (0, 2, 1)), [N])


@jit
def block_sums(x, log, T: constexpr, IS_FULL: constexpr):
    """Sums over blocks: vectors of 16 as a balanced binary tree, then lanes pairwise. x: floats[T] in flat(T, 0).

    Rows are as in rows(T, 0, 32).
    """
    W: constexpr = warps(T)
    x = _halved(x, T, 4)
    if IS_FULL:
        x = _pairs_of_rows(x, T)
        N: constexpr = T // 4
        for k in L.static_range(_log(T) - 6):
            x = _halved(conv(x, held(N >> k, W, 4, 3 - k % 3)), N >> k, 4)
        x = conv(x, held(16, W, 0, 4))
        return L.sum(_halved(_halved(_halved(x, 16, 3), 8, 2), 4, 1), 0)
    else:
        if log > 5:
            sums = _sums_of_rows(_pairs_of_rows(x, T), log, T)
        else:
            sums = conv(_sums_of_lanes(x, T // 2, W), of_rows(rows(T, 0, 32)))
        return sums


@jit
def _pairs_of_rows(x, T: constexpr):
    """Sums of vectors of two rows each, [T / 4], from sums of rows, [T / 2]."""
    return _halved(conv(x, held(T // 2, warps(T), 4, 4)), T // 2, 4)


@jit
def _sums_of_rows(x, log, T: constexpr):
    """Sums over blocks of 64 and more, for each row; x: of _pairs_of_rows()."""
    W: constexpr = warps(T)
    N: constexpr = T // 4
    for k in L.static_range(_log(T) - 6):
        x = conv(x, held(N, W, 4 + k // 3 * 3, 3))
        if 6 + k < log:
            x = conv(_paired(x, N, 4 + k), held(N, W, 4 + k // 3 * 3, 3))
    x = _sums_of_lanes(x, N, W)
    return conv(L.reshape(L.join(x, x), [T // 32]), of_rows(rows(T, 0, 32)))


@jit
def _sums_of_lanes(x, N: constexpr, W: constexpr):
    """Sums of 16 lanes each, [N / 16]: lane bit 3 first."""
    x = _halved(_halved(conv(x, held(N, W, 0, 4)), N, 3), N // 2, 2)
    return _halved(_halved(x, N // 4, 1), N // 8, 0)


@jit
def block_norms(x, there, log, T: constexpr, IS_FULL: constexpr):
    """Euclidean norms. x: float32[T] in flat(T, 0); there: whether rows of 32 are of blocks."""
    squares = block_sums(x * x, log, T, IS_FULL)
    norm = L.sqrt_rn(squares)
    fits = (squares >= _LEAST) & (squares <= _MOST)
    if IS_FULL:
        beyond = fits.to(L.int32) == 0
    else:
        beyond = L.min((fits | (there == 0)).to(L.int32), 0) == 0
    if beyond:
        # The host adds these in another order; the difference is below float32's precision.
        wide = x.to(L.float64)
        norm = L.where(fits, norm, L.sqrt(block_sums(wide * wide, log, T, IS_FULL)).to(L.float32))
    return norm


@jit
def is_finite(norm):
    """Whether blocks of that norm are rounded; the others have codes of 0."""
    return (norm >= _LEAST) & (norm <= _MOST)


@jit
def block_scales(norm, dot, size):
    """scale_of() of nearest_scale.h; 0 for a zero block, NaN for one that is not finite."""
    scale = L.where(dot >= size * 0.000244140625, L.div_rn(norm * size, dot), 0.0)
    return L.where(norm <= _MOST, L.where(norm >= _LEAST, scale, 0.0), float("nan"))
