"""Scales of rows for gradients on a device, with the bits of ../row_scales.py, but for norms as in norms.py.

These are torch operators, because only gradients with embeddings need them.
"""

import numpy as np
import torch
from torch import Tensor

from byteps_thc._scheme.adding.row_scales import LEAST_SCALE, ScaledRows


class DeviceRowScales:
    """As row_scales.RowScales. rows: the segments of a partition."""

    def __init__(self, rows: ScaledRows, coordinates: int, device: torch.device) -> None:
        starts, sizes = rows.starts.astype(np.int64), rows.sizes.astype(np.int64)
        self.blocks, self._coordinates = len(rows.scaled), coordinates
        # A gap, which may be empty, before each segment, and one after all.
        lengths = np.zeros(2 * len(starts) + 1, np.int64)
        lengths[1::2] = sizes
        lengths[0::2] = np.append(starts, coordinates) - np.append(0, starts + sizes)
        self._lengths = torch.from_numpy(lengths).to(device)
        self._block_of = torch.from_numpy(rows.block).to(device)
        self._scaled = torch.from_numpy(rows.scaled).to(device)
        #: of gaps and segments; gaps keep 1
        self._up = torch.ones(len(lengths), device=device)
        self._down = torch.ones_like(self._up)

    def measure(self, gradient: Tensor, residual: Tensor | None, norms: Tensor) -> None:
        """Write the norms of the segments of gradient + residual to norms[B:]."""
        squares = _sum(gradient, residual).double().square_()
        sums = torch.segment_reduce(squares, "sum", lengths=self._lengths, unsafe=True)
        norms[self.blocks :] = sums[1::2].sqrt()

    def take(self, max_norms: Tensor) -> Tensor:
        blocks, largest = max_norms[: self.blocks], max_norms[self.blocks :]
        there = largest > 0
        up = torch.where(there, largest.clamp(min=float(LEAST_SCALE)), 0)
        self._up[1::2] = up
        self._down[1::2] = torch.where(there, up.reciprocal(), 0)
        filled = torch.zeros_like(blocks, dtype=torch.float64).index_add_(0, self._block_of, there.double())
        # Roots of doubles: MKL's float roots may differ in the last bit.
        return torch.where(self._scaled, filled.sqrt().float() + (blocks - blocks), blocks)

    def scale(self, values: Tensor, residual: Tensor | None) -> Tensor:
        """Return (values + residual) with segments divided by their maxima, float32."""
        return _sum(values, residual).mul_(self._each(self._down)).add_(0.0)

    def unscale(self, scaled: Tensor) -> Tensor:
        """Return the inverse of scale(); exact zeros where the maximum is zero."""
        return scaled.mul_(self._each(self._up)).add_(0.0)

    def _each(self, factors: Tensor) -> Tensor:
        return torch.repeat_interleave(factors, self._lengths, output_size=self._coordinates)


def _sum(values: Tensor, residual: Tensor | None) -> Tensor:
    wide = values.to(torch.float32, copy=True)
    return wide if residual is None else wide.add_(residual)
