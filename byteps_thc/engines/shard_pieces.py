"""Pieces of sharded gradients on their way through a reduce-scatter, and the memory they need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from byteps_thc import _core
from byteps_thc.arrays import F32, U8, U16, Gradient, value_dtype
from byteps_thc.config import ResolvedConfig
from byteps_thc.engines.lanes import Waitable
from byteps_thc.engines.max_norms import MaxNorms
from byteps_thc.engines.shards import ShardLayout


@dataclass
class ShardPiece:
    """Some columns of all rows. gradient, residual: [rows, width]; output: [width], of the own row.

    keys: random key of each row. buffers, work: while it is on its way.
    """

    gradient: Gradient
    residual: F32 | None
    output: Gradient
    keys: list[dict[str, int]]
    buffers: PieceBuffers | None = None
    work: Waitable | None = None

    @property
    def width(self) -> int:
        """Columns."""
        return int(self.gradient.shape[1])


class PieceBuffers:
    """Memory for a piece of that many columns; used again by later pieces and layouts."""

    def __init__(self, width: int, resolved: ResolvedConfig) -> None:
        rows, config = resolved.workers, resolved.config
        padded = _core.padded_size(width, config.rotation_block)
        blocks = len(_core.block_sizes(width, config.rotation_block))
        code_bytes = _core.code_bytes(padded, config.bits)
        self.norms: F32 = np.zeros((rows, blocks), np.float32)
        self.max_norms = MaxNorms(rows, blocks)
        self.sent_codes = torch.zeros(rows * code_bytes, dtype=torch.uint8)
        self.received_codes = torch.zeros(rows * code_bytes, dtype=torch.uint8)
        self.aggregate: U8 | U16 = np.zeros(padded, value_dtype(resolved.value_bits))
        self.contributions: U8 = np.full(1, rows, np.uint8)
        # The same memory as the kernels take it.
        self.codes: U8 = self.sent_codes.numpy().reshape(rows, code_bytes)
        self.codes_of_worker: U8 = self.received_codes.numpy().reshape(rows, code_bytes)


class ExactColumns:
    """Columns that travel uncompressed, side by side in float32. Of a row's average all ranks get to know all."""

    def __init__(self, layout: ShardLayout, gradient: Tensor) -> None:
        self._columns = layout.exact
        rows = gradient.view(layout.rows, layout.columns)
        parts = [rows[:, start:stop].float() for start, stop in layout.exact]
        self.sums = torch.cat(parts, dim=1) if parts else torch.zeros(layout.rows, 0)

    def write_average(self, output: Tensor, worker: int, workers: int) -> None:
        """Write the columns of row `worker` of the sums, divided."""
        averages = torch.split(self.sums[worker] / workers, [stop - start for start, stop in self._columns])
        for (start, stop), average in zip(self._columns, averages, strict=True):
            output[start:stop] = average
