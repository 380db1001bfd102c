"""Averaging among ranks that decode each other's codes, in plain NumPy: the algorithm to read, and the kernels' oracle.

The same bits as byteps_thc._native._core. Meant to be read in order:

    cut -> encode (rotate, round to levels with dither, scale) -> decode (add in order of ranks, rotate back)
    -> recode, the owner's step: decode, then encode with random numbers of the way down -> decode, on all ranks
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from reference import F32, U8, U32, Key, philox

BLOCK, TILE = 64, 16
I64 = npt.NDArray[np.int64]
_DOMAINS = {False: 0, True: 0xFFFFFFFE}
#: By bits; wider codes clip nothing.
_CLIPS = {1: 0.9, 2: 1.5, 3: 2.2}
#: Fractions of the golden ratio and of the plastic number's inverse.
_GOLDEN, _PLASTIC = 0x9E3779B9, 0xC13FA9A9
_LEAST, _MOST = np.float32(2.0**-100), np.float32(2.0**100)
#: Exponents below the largest of a tile, and the scale byte of a block that is not finite.
_EXPONENTS, _NOT_FINITE = 14, 255


class Blocks(NamedTuple):
    """Coordinates start .. start + used - 1 of each block, int64[blocks]. first: number of the first block."""

    starts: I64
    used: I64
    first: int = 0

    @property
    def words(self) -> I64:
        return self.starts << 7 | self.used

    def part(self, begin: int, end: int) -> "Blocks":
        return Blocks(self.starts[begin:end], self.used[begin:end], self.first + begin)


class Encoded(NamedTuple):
    """codes: uint8[blocks, 64]. scales: uint8[tiles, 17], the base and a byte of each block."""

    codes: U8
    scales: U8


class Dither(NamedTuple):
    """signs: float32[64]. levels, chances: uint32[blocks]."""

    signs: F32
    levels: U32
    chances: U32

    @classmethod
    def of(cls, blocks: Blocks, key: Key, down: bool, rank: int = 0, ranks: int = 1) -> "Dither":
        low, high, levels, chances = philox(np.zeros(1, np.uint64), _DOMAINS[down], key, 10)[0].tolist()
        mask = np.array([low, high], "<u4").view(np.uint8)
        signs = np.where(np.unpackbits(mask, bitorder="little") == 1, np.float32(-1), np.float32(1))
        numbers = np.arange(blocks.first, blocks.first + len(blocks.starts), dtype=np.uint64)
        shift = rank * (2**32 // ranks)
        return cls(
            signs,
            (numbers * np.uint64(_GOLDEN) + np.uint64(levels + shift)).astype(np.uint32),
            (numbers * np.uint64(_PLASTIC) + np.uint64(chances + shift)).astype(np.uint32),
        )

    def middle(self, bits: int) -> F32:
        """Return the number that a code is less, in steps, float32[blocks, 1]. One bit is a sign, without dither."""
        u = (self.levels >> 16).astype(np.float32) * np.float32(2.0**-16) - np.float32(0.5)
        middle: F32 = np.float32(2.0 ** (bits - 1) - 0.5) - (u if bits > 1 else 0 * u)
        return middle[:, np.newaxis]


def cut(tensors: Iterable[tuple[int, int]], widths: Sequence[int] | None = None) -> Blocks:
    """Cut tensors (start, stop) into blocks, the last of each shorter. widths: rows of each that end blocks, or 0."""
    starts: list[int] = []
    used: list[int] = []
    for (start, stop), width in zip(tensors, itertools.repeat(0) if widths is None else widths, strict=False):
        for row in range(start, stop, width or max(stop - start, 1)):
            end = min(row + width, stop) if width else stop
            starts += range(row, end, BLOCK)
            used += [min(BLOCK, end - at) for at in range(row, end, BLOCK)]
    return Blocks(np.array(starts, np.int64), np.array(used, np.int64))


def encode(
    gradient: npt.NDArray[Any], blocks: Blocks, bits: int, key: Key, *, rank: int = 0, ranks: int = 1,
    down: bool = False,
) -> Encoded:  # fmt: skip
    x = np.zeros((len(blocks.starts), BLOCK), np.float32)
    for row, start, used in zip(x, blocks.starts, blocks.used, strict=True):
        row[:used] = gradient[start : start + used]
    return _encode(x, bits, Dither.of(blocks, key, down, rank, ranks))


def _encode(x: F32, bits: int, dither: Dither) -> Encoded:
    with np.errstate(all="ignore"):
        y = hadamard(x * dither.signs)
        largest = (y.view(np.uint32) & 0x7FFFFFFF).max(axis=1, initial=0, keepdims=True).view(np.float32)
        squares = _folded(np.square(y))
        reach = largest
        if bits in _CLIPS:
            clipped = np.minimum(largest, np.float32(_CLIPS[bits] / 8) * np.sqrt(squares))
            reach = np.where((squares >= _LEAST) & (squares <= _MOST), clipped, largest)
        step = reach / np.float32(2.0 ** (bits - 1) - 0.5)
        step = ((step.view(np.uint32) + 0x7FFFF) & ~np.uint32(0x7FFFF)).view(np.float32)
        has_scale = (largest >= _LEAST) & (largest <= _MOST)
        step = np.where(has_scale, step, 1).astype(np.float32)
        middle = dither.middle(bits)
        levels = np.trunc(np.maximum(y * (1 / step) + (middle + np.float32(0.5)), 0))
        codes: F32 = np.minimum(levels, np.float32((1 << bits) - 1))
        scale = step
        if bits in _CLIPS:
            scale = np.where(reach < largest, squares / np.maximum(_folded(y * (codes - middle)), _LEAST), step)
    is_finite = largest <= _MOST
    records = _scales(np.where(has_scale, scale, np.float32(0))[:, 0], dither.chances)
    records[:, 1:][_tiles(~is_finite[:, 0])] = _NOT_FINITE
    return Encoded(np.where(is_finite, codes, 0).astype(np.uint8), records)


def _scales(scale: F32, chances: U32) -> U8:
    """Round to 4 bits of exponent and 4 of mantissa, at random; uint8[tiles, 17]."""
    tiles, chance = _tiles(scale), _tiles(chances)
    floats = ((tiles.view(np.uint32) + (chance >> 13)) >> 19).astype(np.int32)
    base = (np.where(tiles > 0, floats, 0) >> 4).max(axis=1, keepdims=True)
    lowest = np.maximum(base - _EXPONENTS, 0) << 4
    least = ((lowest + 1) << 19).astype(np.int32).view(np.float32)
    # The least scale stands for smaller ones, so often that the mean is right.
    rare = (chance >> 8).astype(np.float32) * (np.float32(2.0**-24) * least) < tiles
    return np.hstack([base, np.where(tiles >= least, floats - lowest, rare)]).astype(np.uint8)


def _tiles(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.pad(values, (0, -len(values) % TILE)).reshape(-1, TILE)


def decoded(ranks: Sequence[Encoded], blocks: Blocks, bits: int, key: Key, *, down: bool = False) -> F32:
    """Return the average: ranks in order, each divided by their number, added in float32, rotated back; by blocks."""
    total: F32 | None = None
    for rank, sent in enumerate(ranks):
        base = sent.scales[:, :1].astype(np.int32)
        bytes_ = sent.scales[:, 1:].astype(np.int32)
        scale = np.where(bytes_ > 0, (bytes_ + ((base - _EXPONENTS) << 4)) << 19, 0).astype(np.int32).view(np.float32)
        scale = np.where(bytes_ == _NOT_FINITE, np.float32(np.nan), scale)
        factor = scale.reshape(-1, 1)[: len(sent.codes)] / np.float32(BLOCK * len(ranks))
        middle = Dither.of(blocks, key, down, rank, len(ranks)).middle(bits)
        value = (sent.codes.astype(np.float32) - middle) * factor
        total = value if total is None else total + value
    assert total is not None
    average: F32 = hadamard(total) * Dither.of(blocks, key, down).signs
    return average


def decode(ranks: Sequence[Encoded], blocks: Blocks, bits: int, key: Key, out: F32, *, down: bool = False) -> F32:
    """Write the average to the coordinates of the blocks."""
    average = decoded(ranks, blocks, bits, key, down=down)
    for row, start, used in zip(average, blocks.starts, blocks.used, strict=True):
        out[start : start + used] = row[:used]
    return out


def recode(ranks: Sequence[Encoded], blocks: Blocks, bits: int, key: Key, down_bits: int) -> Encoded:
    """Return the owner's message: the average, rounded anew with the random numbers of the way down."""
    average = decoded(ranks, blocks, bits, key)
    average = np.where(np.arange(BLOCK) < blocks.used[:, np.newaxis], average, np.float32(0))
    return _encode(average, down_bits, Dither.of(blocks, key, down=True))


def average(gradients: Sequence[F32], blocks: Blocks, bits: int, down_bits: int | None, key: Key, out: F32) -> F32:
    """Write the average after a round of a shard. down_bits: None where the owner keeps it."""
    ranks = len(gradients)
    sent = [encode(x, blocks, bits, key, rank=rank, ranks=ranks) for rank, x in enumerate(gradients)]
    if down_bits is None:
        return decode(sent, blocks, bits, key, out)
    return decode([recode(sent, blocks, bits, key, down_bits)], blocks, down_bits, key, out, down=True)


def hadamard(x: F32) -> F32:
    """Transform each row of 64, unnormalised: distance 1 first."""
    for half in (1, 2, 4, 8, 16, 32):
        pairs = x.reshape(len(x), BLOCK // half // 2, 2, half)
        x = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(len(x), BLOCK)
    return x


def _folded(x: F32) -> F32:
    """Return sums of rows, float32[blocks, 1]: halves are added until one number is left."""
    while x.shape[1] > 1:
        x = x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :]
    return x
