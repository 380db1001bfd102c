"""Rows with a scale each: a row is divided by its largest norm over the workers before blocks are rotated.

docs/contributors/algorithm.md, "Rows with scales", explains them. gpu/row_scales.py has the same for a device.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from byteps_thc._base.arrays import F32, U64, Gradient
from byteps_thc._native import _core
from byteps_thc._scheme.adding.server_codes import ResolvedCodes
from byteps_thc._scheme.block_plan import BlockPlan, RowSpan, ends_array

#: Smallest maximum, so that its inverse is finite.
LEAST_SCALE = np.float32(2.0**-100)


class ScaledRows:
    """The segments of a partition that have a scale: its rows, cut at the ends of rotation blocks, and gaps between.

    starts, sizes: uint64[S]. block: int64[S], the block of each segment. scaled: bool[B], whether a block has segments.
    """

    def __init__(self, rows: Sequence[RowSpan], block_sizes: np.ndarray[Any, np.dtype[np.int64]], size: int) -> None:
        edges = np.concatenate([[0], np.cumsum(block_sizes)])
        self.scaled = np.zeros(len(block_sizes), bool)
        cuts = [edges[:1]]
        for row in rows:
            first, behind = np.searchsorted(edges, [row.start, row.stop - 1], "right") - 1
            self.scaled[first : behind + 1] = True
            inner = np.arange(row.start - row.skipped + row.width, row.stop, row.width)
            cuts += [inner, np.array([row.start, row.stop]), edges[first : behind + 2]]
        starts = np.unique(np.concatenate(cuts))
        starts = starts[starts < size]
        sizes = np.diff(np.append(starts, size))
        block = np.searchsorted(edges, starts, "right") - 1
        inside = self.scaled[block]
        self.starts: U64 = starts[inside].astype(np.uint64)
        self.sizes: U64 = sizes[inside].astype(np.uint64)
        self.block = block[inside]

    def __len__(self) -> int:
        return len(self.starts)


class PartitionSizes:
    """Sizes of partitions with these settings. Segments are found once, though pieces are made every round."""

    def __init__(self, resolved: ResolvedCodes) -> None:
        self._block = resolved.codes.rotation_block
        self._scaled: dict[tuple[int, BlockPlan], ScaledRows] = {}

    def scaled_rows(self, coordinates: int, plan: BlockPlan) -> ScaledRows | None:
        if not plan.rows:
            return None
        if (coordinates, plan) not in self._scaled:
            rows = ScaledRows(plan.rows, self._block_sizes(coordinates, plan), coordinates)
            self._scaled[coordinates, plan] = rows
        return self._scaled[coordinates, plan]

    def of(self, coordinates: int, plan: BlockPlan) -> tuple[int, int]:
        """Return (norms, padded coordinates): a norm for each rotation block and each segment with a scale."""
        rows = self.scaled_rows(coordinates, plan)
        norms = self.blocks(coordinates, plan) + (0 if rows is None else len(rows))
        return norms, _core.padded_size(coordinates, self._block)

    def blocks(self, coordinates: int, plan: BlockPlan) -> int:
        return len(self._block_sizes(coordinates, plan))

    def _block_sizes(self, coordinates: int, plan: BlockPlan) -> np.ndarray[Any, np.dtype[np.int64]]:
        return _core.block_sizes(coordinates, self._block, ends_array(plan.ends))


class RowScales:
    """Scales of one partition in host memory, from round to round. rows: its segments. pool: threads for the kernels.

    Norms that travel are float32[B + S]: of B rotation blocks, then of the segments.
    """

    def __init__(self, rows: ScaledRows, pool: _core.ThreadPool | None) -> None:
        self._rows, self._pool = rows, pool
        self.blocks = len(rows.scaled)
        self._down: F32 = np.zeros(len(rows), np.float32)
        self._up: F32 = np.zeros(len(rows), np.float32)

    def measure(self, gradient: Gradient, residual: F32 | None, norms: F32) -> None:
        """Write the norms of the segments of gradient + residual to norms[B:]."""
        rows = self._rows
        _core.segment_norms(gradient, residual, rows.starts, rows.sizes, norms[self.blocks :], pool=self._pool)

    def take(self, max_norms: F32) -> F32:
        """Take the maxima of a round, float32[B + S]; return the clamping norms, float32[B], NaN if not finite."""
        largest = max_norms[self.blocks :]
        self._up[:] = np.where(largest > 0, np.maximum(largest, LEAST_SCALE), 0)
        self._down[:] = 0
        np.divide(1, self._up, out=self._down, where=self._up != 0)
        filled = np.bincount(self._rows.block, largest > 0, self.blocks)
        blocks = max_norms[: self.blocks]
        with np.errstate(invalid="ignore"):
            return np.where(self._rows.scaled, np.sqrt(filled).astype(np.float32) + (blocks - blocks), blocks)

    def scale(self, values: Gradient, residual: F32 | None) -> F32:
        """Return (values + residual) with segments divided by their maxima."""
        scaled: F32 = np.empty(values.size, np.float32)
        self._multiply(values, residual, self._down, scaled)
        return scaled

    def unscale(self, scaled: Gradient, out: Gradient) -> None:
        """Write the inverse of scale() to out, of any dtype; exact zeros in segments whose maximum is zero."""
        self._multiply(scaled, None, self._up, out)

    def _multiply(self, values: Gradient, addend: F32 | None, factors: F32, out: Gradient) -> None:
        rows = self._rows
        _core.scale_segments(values, addend, rows.starts, rows.sizes, factors, out, pool=self._pool)
