"""Philox4x32, and the signs and rounding bits drawn from it. reference.philox is the oracle.

A key is int32[6] in device memory: seed (lower, upper half), tensor, round, and domain and phase of the rounding bits.
"""

from byteps_thc._scheme.gpu.frontend import L, arange, constexpr, conv, jit
from byteps_thc._scheme.gpu.layouts import of_columns, of_rows, rounding, rows, spread

SIGN_ROUNDS, ROUNDING_ROUNDS = constexpr(10), constexpr(7)


@jit
def key_word(key, index: constexpr):
    return L.load(key + index).to(L.uint32, bitcast=True)


@jit
def philox(c0, c1, c2, c3, k0, k1, ROUNDS: constexpr):
    """Philox4x32 (Salmon et al., SC'11) of counters and keys, uint32."""
    for _ in L.static_range(ROUNDS):
        p0 = c0.to(L.uint64) * 0xD2511F53
        p1 = c2.to(L.uint64) * 0xCD9E8D57
        c0, c1, c2, c3 = (
            (p1 >> 32).to(L.uint32) ^ c1 ^ k0,
            p1.to(L.uint32),
            (p0 >> 32).to(L.uint32) ^ c3 ^ k1,
            p0.to(L.uint32),
        )
        k0 = (k0.to(L.uint64) + 0x9E3779B9).to(L.uint32)
        k1 = (k1.to(L.uint64) + 0xBB67AE85).to(L.uint32)
    return c0, c1, c2, c3


@jit
def sign_words(key, first, T: constexpr, WARPS: constexpr):
    """uint32[T / 32]: bit c of word r is the sign of coordinate first + 32 r + c. first: a multiple of T."""
    block = (first // 128).to(L.uint32) + arange(T // 128, spread(T // 128, WARPS)).to(L.uint32)
    zero = block * 0
    w0, w1, w2, w3 = philox(
        block, zero, zero + key_word(key, 2), zero + key_word(key, 3), zero + key_word(key, 0), zero + key_word(key, 1),
        SIGN_ROUNDS,
    )  # fmt: skip
    return L.reshape(L.join(L.join(w0, w2), L.join(w1, w3)), [T // 32])


@jit
def flip(x, words, T: constexpr, PART: constexpr):
    """x, [T / 32, 32] in rows(T, PART, 32), with signs flipped by `words`."""
    layout: constexpr = rows(T, PART, 32)
    word = L.expand_dims(conv(words, of_rows(layout)), 1)
    return (x.to(L.uint32, bitcast=True) ^ _sign_bits(word, layout)).to(L.float32, bitcast=True)


@jit
def _sign_bits(word, layout: constexpr):
    left = L.expand_dims(31 - arange(32, of_columns(layout)), 0).to(L.uint32)
    return (word << left) & 0x80000000


@jit
def rounding_words(key, first, T: constexpr):
    """uint32[T / 32, 16] in rows(T, 0, 16): pairs of rounding bits, the even coordinate's in the lower half."""
    blocks: constexpr = rounding(T)
    group = (first // 64).to(L.uint32) + arange(T // 64, of_rows(blocks)).to(L.uint32)
    index = L.expand_dims(group * 8, 1) + L.expand_dims(arange(8, of_columns(blocks)), 0).to(L.uint32)
    zero = index * 0
    w0, w1, w2, w3 = philox(
        index, zero + key_word(key, 4), zero + key_word(key, 2), zero + key_word(key, 3), zero + key_word(key, 0),
        zero + key_word(key, 1), ROUNDING_ROUNDS,
    )  # fmt: skip
    words = L.join(L.join(w0, w2), L.join(w1, w3))  # [T / 64, 8, 2, 2]: word 2 a + b at [.., a, b]
    words = L.reshape(L.permute(words, (0, 2, 3, 1)), [T // 32, 16])
    return conv(words, rows(T, 0, 16))
