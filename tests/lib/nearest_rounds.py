"""Rounds of ranks that decode each other's codes, by the kernels, in one process; and EDEN's, with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from reference import F32, U8, Key

from byteps_thc._native import _core
from byteps_thc._scheme.tables.points import Points, lloyd_max, staggered

ROTATION_BLOCK = 8192


class Sent(NamedTuple):
    """Packed codes, and scales of blocks."""

    codes: U8
    scales: F32


def keywords(key: Key) -> dict[str, int]:
    return {"seed": key.seed, "tensor": key.tensor, "round": key.round}


def empty(blocks: _core.RotationBlocks, bits: int, ranks: int = 1) -> Sent:
    """Messages of `ranks` ranks, full of rubbish: rows of codes and scales that lie apart."""
    codes = np.full((ranks, _core.code_bytes(blocks.padded, bits) + 5), 0xA5, np.uint8)
    scales = np.full((ranks, len(blocks) + 1), -1, np.float32)
    return Sent(codes[:, : codes.shape[1] - 5], scales[:, : len(blocks)])


def encode(
    gradient: npt.NDArray[Any], blocks: _core.RotationBlocks, points: Points, key: Key, *, kernels: Any = _core,
    down: bool = False, pool: _core.ThreadPool | None = None,
) -> Sent:  # fmt: skip
    """Return what a rank sends."""
    sent = empty(blocks, points.bits)
    kernels.encode_nearest(
        gradient, sent.codes[0], sent.scales[0], blocks=blocks, edges=points.edges, points=points.points, down=down,
        pool=pool, **keywords(key),
    )  # fmt: skip
    return Sent(sent.codes[0], sent.scales[0])


def gathered(sent: Sequence[Sent], blocks: _core.RotationBlocks, bits: int) -> Sent:
    """What all ranks sent, as it lies in a receive buffer."""
    rows = empty(blocks, bits, len(sent))
    for rank, one in enumerate(sent):
        rows.codes[rank], rows.scales[rank] = one
    return rows


def decode(
    sent: Sequence[Sent], points: Sequence[Points], blocks: _core.RotationBlocks, key: Key, *, kernels: Any = _core,
    down: bool = False, dtype: Any = np.float32, pool: _core.ThreadPool | None = None,
) -> npt.NDArray[Any]:  # fmt: skip
    """Return the average of what ranks sent."""
    out = np.full(blocks.coordinates, 7, dtype)
    rows = gathered(sent, blocks, points[0].bits)
    table = np.stack([own.points for own in points])
    kernels.decode_nearest(
        rows.codes, rows.scales, out, blocks=blocks, points=table, down=down, pool=pool, **keywords(key)
    )
    return out


def recode(
    sent: Sequence[Sent], points: Sequence[Points], blocks: _core.RotationBlocks, key: Key, down: Points, *,
    kernels: Any = _core, pool: _core.ThreadPool | None = None,
) -> Sent:  # fmt: skip
    """Return what an owner sends down."""
    rows, out = gathered(sent, blocks, points[0].bits), empty(blocks, down.bits)
    table = np.stack([own.points for own in points])
    kernels.recode_nearest(
        rows.codes, rows.scales, out.codes[0], out.scales[0], blocks=blocks, points=table, down_edges=down.edges,
        down_points=down.points, pool=pool, **keywords(key),
    )  # fmt: skip
    return Sent(out.codes[0], out.scales[0])


def blocks_of(coordinates: int, tensors: Sequence[slice] = ()) -> _core.RotationBlocks:
    """Return rotation blocks that end at tensors. tensors: one after the other; none: the gradient is one."""
    ends = np.array([span.start for span in tensors if 0 < span.start < coordinates], np.uint64)
    return _core.RotationBlocks(coordinates, ROTATION_BLOCK, ends)


def average(
    gradients: Sequence[F32], up_bits: int, down_bits: int | None, key: Key, blocks: _core.RotationBlocks | None = None
) -> F32:
    """Return the average after a round.

    down_bits: None where owners keep it (one hop). blocks: of the gradient (default: those of one tensor).
    """
    blocks = blocks or blocks_of(len(gradients[0]))
    points = [staggered(up_bits, rank, len(gradients)) for rank in range(len(gradients))]
    sent = [encode(gradient, blocks, own, key) for gradient, own in zip(gradients, points, strict=True)]
    if down_bits is None:
        return decode(sent, points, blocks, key)
    down = lloyd_max(down_bits)
    return decode([recode(sent, points, blocks, key, down)], [down], blocks, key, down=True)


def eden_average(
    gradients: Sequence[F32], up_bits: int, down_bits: int | None, key: Key, blocks: _core.RotationBlocks | None = None
) -> F32:
    """Return EDEN's: a rotation for each rank, and one for the average. down_bits, blocks: as of average()."""
    cut = blocks or blocks_of(len(gradients[0]))

    def alone(x: F32, bits: int, rank: int) -> F32:
        own, points = Key(key.seed, key.tensor + 1 + rank, key.round), lloyd_max(bits)
        return decode([encode(x, cut, points, own)], [points], cut, own)

    mean = np.mean([alone(gradient, up_bits, rank) for rank, gradient in enumerate(gradients)], axis=0)
    return mean if down_bits is None else alone(mean.astype(np.float32), down_bits, len(gradients))
