"""Averaging among ranks that decode each other's codes, in plain NumPy: the algorithm to read, and the kernels' oracle.

The same bits as byteps_thc._native._core. Meant to be read in order:

    cut -> encode (rotate, round to the nearest, scale) -> decode (add in order of ranks, rotate back)
    -> recode, what an owner does: decode, then encode with signs of its own for the way down -> decode, on all ranks
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from reference import F32, U8, Key, hadamard, norm, signs

from byteps_thc._scheme.tables.points import Points
from byteps_thc._scheme.wire.layout import MIN_ROTATION_BLOCK

DOWN_SIGN_DOMAIN = 0xFFFFFFFE
_MIN_BLOCK, _DOT_LANES = 16, 16
_LEAST_NORM, _MOST_NORM = np.float32(2.0**-100), np.float32(2.0**100)


class Block(NamedTuple):
    """coordinates: of the gradient; codes: these, and the padding behind them."""

    coordinates: slice
    codes: slice


class Encoded(NamedTuple):
    """codes: uint8 of every padded coordinate. scales: of every block; 0: zeros, NaN: not finite."""

    codes: U8
    scales: F32


def cut(coordinates: int, rotation_block: int, ends: Sequence[int] = ()) -> list[Block]:
    """Cut at ends, then into full blocks and ever smaller powers of two, the last of each segment padded.

    A row or tail of fewer than 64 coordinates has a block of 16, 32 or 64.
    """
    blocks, offset = [], 0
    for start, end in itertools.pairwise([0, *ends, coordinates]):
        while start < end:
            left = end - start
            if left < MIN_ROTATION_BLOCK:
                size = max(_MIN_BLOCK, 1 << (left - 1).bit_length())
            else:
                padded = -(-left // MIN_ROTATION_BLOCK) * MIN_ROTATION_BLOCK
                size = min(rotation_block, 1 << (padded.bit_length() - 1))
            stop = min(start + size, end)
            blocks.append(Block(slice(start, stop), slice(offset, offset + size)))
            start, offset = stop, offset + size
    return blocks


def _signs(blocks: list[Block], key: Key, down: bool) -> F32:
    return signs(blocks[-1].codes.stop if blocks else 0, key, DOWN_SIGN_DOMAIN if down else 0)


def _dot(x: F32, y: F32) -> np.float32:
    """<x, y>: products and sums in float32, vectors of 16 lanes as a balanced binary tree, then lanes pairwise."""
    vectors = (x * y).reshape(-1, _DOT_LANES)
    while len(vectors) > 1:
        vectors = vectors[::2] + vectors[1::2]
    lanes = vectors[0]
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return np.float32(lanes[0])


def _norm(x: F32) -> np.float32:
    """The root of <x, x>, or where squares may over- or underflow, of the sum in double."""
    with np.errstate(all="ignore"):
        squares = _dot(x, x)
    return np.sqrt(squares) if 2.0**-100 <= squares <= 2.0**100 else norm(x)


def encode(gradient: npt.NDArray[np.floating], blocks: list[Block], points: Points, key: Key, down: bool) -> Encoded:
    """Round the rotated blocks to the nearest points, each with the scale |y|^2 / <y, c>.

    y = |x| z, |x| being the norm of the block and the root mean square of y, which is not normalised.
    """
    flips = _signs(blocks, key, down)
    codes, scales = np.zeros(len(flips), np.uint8), np.zeros(len(blocks), np.float32)
    for number, block in enumerate(blocks):
        size = block.codes.stop - block.codes.start
        x = np.zeros(size, np.float32)
        x[: block.coordinates.stop - block.coordinates.start] = gradient[block.coordinates]
        length = _norm(x)
        if not length <= _MOST_NORM:
            scales[number] = np.nan
        elif length >= _LEAST_NORM:
            z = hadamard(x * flips[block.codes]) * (np.float32(1) / length)
            found = np.searchsorted(points.edges, z, side="right")
            dot = _dot(z, points.points[found])
            codes[block.codes] = found
            if dot >= np.float32(size * 2.0**-12):
                scales[number] = length * np.float32(size) / dot
    return Encoded(codes, scales)


def _average(ranks: list[Encoded], points: list[Points], blocks: list[Block], key: Key, down: bool) -> F32:
    """The average as float32, with the padding."""
    flips = _signs(blocks, key, down)
    out = np.zeros(len(flips), np.float32)
    for number, block in enumerate(blocks):
        scales = np.array([rank.scales[number] for rank in ranks])
        if np.isnan(scales).any() or not scales.any():
            out[block.codes] = np.nan if np.isnan(scales).any() else 0
            continue
        size = np.float32(block.codes.stop - block.codes.start)
        factors = scales / np.float32(len(ranks)) * (np.float32(1) / size)
        values = [
            own.points[rank.codes[block.codes]] * factor
            for rank, own, factor in zip(ranks, points, factors, strict=True)
        ]
        total = values[0]
        for value in values[1:]:
            total = total + value
        out[block.codes] = hadamard(total) * flips[block.codes]
    return out


def _unpadded(padded: F32, blocks: list[Block]) -> F32:
    parts = [padded[block.codes][: block.coordinates.stop - block.coordinates.start] for block in blocks]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def decode(ranks: list[Encoded], points: list[Points], blocks: list[Block], key: Key, down: bool) -> F32:
    """Return the average: ranks in order, each divided by their number, added in float32, rotated back."""
    return _unpadded(_average(ranks, points, blocks, key, down), blocks)


def recode(ranks: list[Encoded], points: list[Points], blocks: list[Block], key: Key, down: Points) -> Encoded:
    """What the owner sends down: the average, rounded anew with signs of its own."""
    return encode(decode(ranks, points, blocks, key, down=False), blocks, down, key, down=True)


def average(gradients: list[F32], blocks: list[Block], up: list[Points], down: Points, key: Key) -> F32:
    """Return what all ranks have after a round."""
    sent = [encode(gradient, blocks, own, key, down=False) for gradient, own in zip(gradients, up, strict=True)]
    return decode([recode(sent, up, blocks, key, down)], [down], blocks, key, down=True)
