"""Blocks of 64 with a scale of 8 bits and uniform levels with subtractive dither: a candidate among ranks, in NumPy.

THC among ranks rotates up to 8192 coordinates together, and what is lost spreads over them evenly. Here it stays within
64 coordinates. For each hop, with one mask of 64 signs for all blocks:

    y = H64 (signs x)          t = min(largest |y|, clip * rms of y) / (2^bits / 2 - 1/2)
    code = floor(y / t - u)    from -2^bits / 2 to 2^bits / 2 - 1, of u in [-1/2, 1/2), one number a block
    decoded: (code + 1/2 + u) s, rotated back

Dither that the receiver subtracts (Roberts, IRE 1962) makes the error independent of y, so the average over rounds is
exact where nothing is clipped, whatever 64 coordinates hold. Where something is, s is t times DRIVE's factor (Vargaftik
et al., NeurIPS 2021), |y|^2 / <y, decoded>. u is a Weyl sequence over blocks, shifted by rank / ranks: correlated
quantization (Suresh et al., ICML 2022). s has 4 bits of exponent and 4 of mantissa, rounded at random; 16 blocks share
the largest exponent, a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from byteps_thc._scheme.arrays import F32, U8

U32 = npt.NDArray[np.uint32]
BLOCK = 64
#: Blocks with a common exponent.
TILE = 16
#: By bits; wider codes clip nothing. Chosen for little error of normal coordinates with a bias below 2 in 300 rounds.
CLIPS = {1: 0.9, 2: 1.5, 3: 2.2}
#: Fractions of the golden ratio and of the plastic number's inverse: points of these sequences keep away from others.
_GOLDEN, _PLASTIC = 0x9E3779B9, 0xC13FA9A9
_LEAST = np.float32(2.0**-100)


@dataclass(frozen=True)
class Blocks:
    """up_bits, down_bits: of a code, 1 .. 8. seed: of signs and dither."""

    up_bits: int
    down_bits: int
    seed: int = 0


class Dither(NamedTuple):
    """Of one hop. signs: float32[64]. levels, scales: uint32[blocks], of levels and of scales."""

    signs: F32
    levels: U32
    scales: U32

    @classmethod
    def of(cls, random: np.random.Generator, blocks: int) -> Dither:
        signs = random.integers(0, 2, BLOCK).astype(np.float32) * 2 - 1
        first, second = random.integers(0, 1 << 32, 2, np.uint32)
        counts = np.arange(blocks, dtype=np.uint32)
        return cls(signs, first + counts * np.uint32(_GOLDEN), second + counts * np.uint32(_PLASTIC))

    def of_rank(self, rank: int, ranks: int) -> Dither:
        shift = np.uint32((1 << 32) // ranks * rank)
        return Dither(self.signs, self.levels + shift, self.scales + shift)

    def middle(self, bits: int) -> F32:
        """What codes minus it times s are: float32[blocks, 1]. u has 16 bits: the difference is exact.

        One bit says the sign, without dither.
        """
        u = (self.levels >> 16).astype(np.float32) * np.float32(2.0**-16) - np.float32(0.5)
        middle: F32 = np.float32(2.0 ** (bits - 1) - 0.5) - (u if bits > 1 else 0 * u)
        return middle[:, np.newaxis]


class Codes(NamedTuple):
    """codes: uint8[blocks, 64]. scales: uint8[tiles, 16], 0 for zero. bases: uint8[tiles], the largest exponents."""

    codes: U8
    scales: U8
    bases: U8


def encode(x: F32, bits: int, dither: Dither) -> Codes:
    """x: float32[blocks, 64], finite."""
    y = hadamard(x * dither.signs)
    largest = np.abs(y).max(axis=1, keepdims=True)
    squares = _folded(np.square(y))
    reach = largest
    if bits in CLIPS:
        reach = np.minimum(largest, np.float32(CLIPS[bits] / 8) * np.sqrt(squares))
    half, middle = np.float32(2.0 ** (bits - 1)), dither.middle(bits)
    is_zero = largest < _LEAST
    step = np.where(is_zero, 1, reach / (half - np.float32(0.5)))
    codes = np.clip(np.trunc(np.maximum(y * (1 / step) + (middle + np.float32(0.5)), 0)), 0, 2 * half - 1)
    scale = step
    if bits in CLIPS:
        dots = _folded(y * (codes - middle))
        scale = np.where(reach < largest, squares / np.maximum(dots, _LEAST), step)
    return Codes(codes.astype(np.uint8), *_scales(np.where(is_zero, 0, scale)[:, 0], dither.scales))


def decode(sent: Codes, bits: int, dither: Dither, ranks: int = 1) -> F32:
    """float32[blocks, 64], rotated as it was, times 1 / ranks: see rotate_back()."""
    exponents = (sent.bases.astype(np.int32)[:, np.newaxis] - 15) << 4
    scale = np.where(sent.scales > 0, (sent.scales + exponents) << 19, 0).astype(np.int32).view(np.float32)
    factor = scale.reshape(-1, 1)[: len(sent.codes)] / np.float32(BLOCK * ranks)
    decoded: F32 = (sent.codes - dither.middle(bits)) * factor
    return decoded


def rotate_back(y: F32, dither: Dither) -> F32:
    return hadamard(y) * dither.signs


def hadamard(x: F32) -> F32:
    """Of each row, unnormalised: distance 1 first."""
    for half in (1, 2, 4, 8, 16, 32):
        pairs = x.reshape(len(x), -1, 2, half)
        x = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(len(x), BLOCK)
    return x


def _folded(x: F32) -> F32:
    """Sums of rows, float32[blocks, 1], halves added until one number is left: an order that vectors have, too."""
    while x.shape[1] > 1:
        x = x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :]
    return x


def _scales(scale: F32, random: U32) -> tuple[U8, U8]:
    padding = (0, -len(scale) % TILE)
    tiles = np.pad(scale.astype(np.float32), padding).reshape(-1, TILE)
    chance = np.pad(random, padding).reshape(-1, TILE)
    floats = ((tiles.view(np.uint32) + (chance >> 13)) >> 19).astype(np.int32)
    bases = (np.where(tiles > 0, floats, 0) >> 4).max(axis=1, keepdims=True)
    lowest = np.maximum(bases - 15, 0) << 4
    least = ((lowest + 1) << 19).astype(np.int32).view(np.float32)
    # Less than the least scale: that, so often that the average is right.
    rare = (chance >> 8).astype(np.float32) * np.float32(2.0**-24) * least < tiles
    bytes_ = np.where(tiles >= least, floats - lowest, rare)
    return bytes_.astype(np.uint8), bases[:, 0].astype(np.uint8)


class BlocksAverager:
    """Averages float32[ranks, coordinates]; blocks end at tensors, which lie one after the other."""

    def __init__(self, config: Blocks, tensors: Sequence[slice]) -> None:
        self._config, self._round = config, 0
        sizes = [span.stop - span.start for span in tensors]
        padded = [-(-size // BLOCK) * BLOCK for size in sizes]
        starts = np.cumsum([0, *padded[:-1]])
        self._at = np.concatenate([start + np.arange(size) for start, size in zip(starts, sizes, strict=True)])
        self._blocks = sum(padded) // BLOCK
        tiles = -(-self._blocks // TILE)
        codes = sum(padded) * (config.up_bits + config.down_bits) / 8
        self.bytes_both_ways = codes + 2.0 * (TILE + 1) * tiles

    def average(self, gradients: Tensor) -> Tensor:
        return torch.from_numpy(self.average_rows(gradients.numpy()))

    def average_rows(self, gradients: F32) -> F32:
        random = np.random.default_rng((self._config.seed, self._round))
        self._round += 1
        up, down = (Dither.of(random, self._blocks) for _ in range(2))
        total = np.float32(0)
        for rank, own in enumerate(gradients):
            padded = np.zeros(self._blocks * BLOCK, np.float32)
            padded[self._at] = own
            dither = up.of_rank(rank, len(gradients))
            sent = encode(padded.reshape(-1, BLOCK), self._config.up_bits, dither)
            total = total + decode(sent, self._config.up_bits, dither, len(gradients))
        sent = encode(rotate_back(total, up), self._config.down_bits, down)
        average: F32 = rotate_back(decode(sent, self._config.down_bits, down), down).reshape(-1)[self._at]
        return average
