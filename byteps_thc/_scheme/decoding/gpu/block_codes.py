"""Codes of blocks of 64: signs, rotation, levels with dither, scales of 8 bits.

tests/lib/block_reference.py is the oracle, to the bit.

Values of a block are [PROGRAM_BLOCKS] numbers in rows of own(). Coordinates are [PROGRAM_BLOCKS, 64].
"""

from byteps_thc._scheme.block_plan import BLOCK, TILE
from byteps_thc._scheme.decoding.gpu.block_tiles import PROGRAM_BLOCKS, own, own_rows
from byteps_thc._scheme.gpu.frontend import L, arange, constexpr, constexpr_function, conv, jit
from byteps_thc._scheme.gpu.frontend import number as finite_or_zero
from byteps_thc._scheme.gpu.layouts import of_columns, of_rows
from byteps_thc._scheme.gpu.packing import load_rows, row_words, store_rows, unpacked
from byteps_thc._scheme.gpu.random_bits import SIGN_ROUNDS, philox

_B, _T, _C = constexpr(PROGRAM_BLOCKS), constexpr(TILE), constexpr(BLOCK)
_GOLDEN, _PLASTIC = constexpr(0x9E3779B9), constexpr(0xC13FA9A9)
_LEAST, _MOST = constexpr(2.0**-100), constexpr(2.0**100)
#: Bits of a float that a scale lacks, exponents below the largest of a tile, the scale of a block that is not finite.
_DROPPED, _EXPONENTS, _NOT_FINITE = constexpr(19), constexpr(14), constexpr(255)
_CLIPS = (0.0, 0.9, 1.5, 2.2)


@constexpr_function
def clip_of(bits):
    """Root mean squares of a block beyond which values are clipped, over 8; 0 for none."""
    return _CLIPS[bits] / 8 if bits < len(_CLIPS) else 0.0


@constexpr_function
def middle_level(bits):
    return 2.0 ** (bits - 1) - 0.5


@jit
def random_words(seed, seed_high, tensor, round, domain):
    """(32 signs, 32 signs, level, chance of block 0) of a hop, uint32 each, as the arguments."""
    return philox(seed * 0, domain, tensor, round, seed, seed_high, SIGN_ROUNDS)


@jit
def flip(x, low, high, layout: constexpr):
    """x in a layout of [PROGRAM_BLOCKS, 64] with the signs of `low` (columns below 32) and `high`."""
    column = arange(_C, of_columns(layout))
    word = L.where(column < 32, low, high)
    sign = (word >> (column & 31).to(L.uint32)) << 31
    return (x.to(L.uint32, bitcast=True) ^ L.expand_dims(sign, 0)).to(L.float32, bitcast=True)


@jit
def rotated(x):
    """H x of each block, in own(); distance 1 first."""
    for s in L.static_range(6):
        a, b = L.split(L.permute(L.reshape(x, [_B, 32 >> s, 2, 1 << s]), (0, 1, 3, 2)))
        x = conv(L.reshape(L.permute(L.join(a + b, a - b), (0, 1, 3, 2)), [_B, _C]), own())
    return x


@jit
def _folded(x):
    """Sums of blocks: halves are added until one number is left."""
    for s in L.static_range(6):
        a, b = L.split(L.permute(L.reshape(x, [_B, 2, 32 >> s]), (0, 2, 1)))
        x = a + b
    return conv(L.reshape(x, [_B]), of_rows(own()))


@jit
def _largest_of_tile(x):
    """The largest x of each block's tile. x: int32[PROGRAM_BLOCKS]."""
    tiles = L.reshape(x, [_B // _T, _T])
    largest = L.expand_dims(L.max(tiles, 1), 1) + tiles * 0
    return conv(L.reshape(largest, [_B]), of_rows(own()))


@jit
def _middle(levels, number, BITS: constexpr):
    """Codes' zero. levels: of block 0. number: of the blocks in the gradient, uint32."""
    if BITS == 1:
        return (number * 0).to(L.float32) + 0.5
    else:
        u = ((levels + number * _GOLDEN) >> 16).to(L.int32).to(L.float32) * (2.0**-16) - 0.5
        return middle_level(BITS) - u


@jit
def _twice(x):
    """A block's number for both rows of codes."""
    return conv(L.reshape(L.join(x, x), [2 * _B]), of_rows(own_rows(32)))


@jit
def _code_rows(message, block, BITS: constexpr):
    """Addresses of rows of 32 codes, int32[2 * PROGRAM_BLOCKS]. message: as in put_codes()."""
    memory, codes_at, _ = message
    upper = arange(2 * _B, of_rows(own_rows(32))) & 1
    row = _twice(block).to(L.int64) * 2 + upper
    return memory.to(L.pointer_type(L.int32), bitcast=True) + codes_at.to(L.int64) * 4 + row * BITS


@jit
def _base_of(message, block):
    """Addresses of the bases of blocks' tiles, in front of their scales, uint8[PROGRAM_BLOCKS]."""
    memory, _, scales_at = message
    return memory + scales_at.to(L.int64) * 8 + (block // _T).to(L.int64) * (_T + 1)


@jit
def put_codes(y, random, place, message, BITS: constexpr):
    """Round and write blocks. y: rotated. random: (levels, chances) of block 0, uint32.

    place: (number in the shard, number in the gradient, whether it exists) of blocks.
    message: (uint8 memory of the shard's message; 16 bytes before codes; 8 bytes before scales).
    """
    levels, chances = random
    block, number, there = place
    largest = L.max(y.to(L.int32, bitcast=True) & 0x7FFFFFFF, 1).to(L.float32, bitcast=True)
    is_finite = largest <= _MOST
    reach = largest
    if clip_of(BITS) > 0:
        squares = _folded(y * y)
        fits = (squares >= _LEAST) & (squares <= _MOST)
        reach = L.where(fits, L.minimum(largest, L.sqrt_rn(squares) * clip_of(BITS)), largest)
    # Rounded up to a possible scale.
    step = L.div_rn(reach, middle_level(BITS)).to(L.int32, bitcast=True)
    step = ((step + 0x7FFFF) & -0x80000).to(L.float32, bitcast=True)
    has_scale = (largest >= _LEAST) & is_finite
    step = L.where(has_scale, step, 1.0)
    middle = _middle(levels, number, BITS)
    # Codes of 0 in a block that is not finite: the maximum with 0 drops NaN.
    inverse = L.where(is_finite, L.div_rn(1.0, step), 0.0)
    rounds = L.where(is_finite, middle + 0.5, 0.0)
    level = finite_or_zero(y * L.expand_dims(inverse, 1) + L.expand_dims(rounds, 1))
    top: constexpr = (1 << BITS) - 1
    code = L.minimum(L.maximum(level, 0.0), top * 1.0).to(L.int32)
    scale = step
    if clip_of(BITS) > 0:
        dot = _folded(y * (code.to(L.float32) - L.expand_dims(middle, 1)))
        scale = L.where(reach < largest, L.div_rn(squares, L.maximum(dot, _LEAST)), step)
    scale = L.where(has_scale, scale, 0.0)
    _put_scales(scale, chances + number * _PLASTIC, is_finite, block, _base_of(message, block))
    words, row = row_words(L.reshape(code, [2 * _B, 32]).to(L.uint32), 2 * _B, BITS), ()
    for k in L.static_range(BITS):
        row = row + (conv(words[k], of_rows(own_rows(32))),)  # type: ignore[assignment]
    store_rows(_code_rows(message, block, BITS), _twice(there.to(L.int32)) != 0, row, own_rows(4), BITS)


@jit
def _put_scales(scale, chance, is_finite, block, at):
    floats = ((scale.to(L.uint32, bitcast=True) + (chance >> (32 - _DROPPED))) >> _DROPPED).to(L.int32)
    base = _largest_of_tile(L.where(scale > 0, floats, 0)) >> 4
    lowest = L.maximum(base - _EXPONENTS, 0) << 4
    least = ((lowest + 1) << _DROPPED).to(L.float32, bitcast=True)
    # Below the least scale: the least scale, so often that the average is right.
    rare = (chance >> 8).to(L.int32).to(L.float32) * (least * (2.0**-24)) < scale
    byte = L.where(scale >= least, floats - lowest, rare.to(L.int32))
    # A shard's last tile has bytes for all of its blocks.
    L.store(at + 1 + block % _T, L.where(is_finite, byte, _NOT_FINITE).to(L.uint8), block >= 0)
    L.store(at, base.to(L.uint8), (block >= 0) & (block % _T == 0))


@jit
def values(levels, place, message, divisor, spoiled, BITS: constexpr):
    """A rank's part of the averages, in own(); NaN in blocks that are not finite, or if `spoiled`.

    levels: of the rank's block 0. place, message: as in put_codes(). divisor: 64 * ranks, float32.
    """
    block, number, there = place
    at = _base_of(message, block)
    base = L.load(at, there, 0).to(L.int32)
    byte = L.load(at + 1 + block % _T, there, 0).to(L.int32)
    scale = ((byte + ((base - _EXPONENTS) << 4)) << _DROPPED).to(L.float32, bitcast=True)
    factor = L.div_rn(L.where(byte == 0, 0.0, scale), divisor)
    factor = L.where((byte == _NOT_FINITE) | spoiled, float("nan"), factor)
    row = load_rows(_code_rows(message, block, BITS), _twice(there.to(L.int32)) != 0, BITS)
    code = conv(unpacked(row, 2 * _B, BITS), own_rows(32))
    middle = _middle(levels, number, BITS)
    if BITS < 8:  # 128 + code and 128 + middle are exact, and the float has the code's bits
        level = ((code << 16) | 0x43000000).to(L.float32, bitcast=True)
        middle += 128.0
    else:
        level = (code | 0x4B000000).to(L.float32, bitcast=True) - 8388608.0
    level = conv(L.reshape(level, [_B, _C]), own())
    return (level - L.expand_dims(middle, 1)) * L.expand_dims(factor, 1)
