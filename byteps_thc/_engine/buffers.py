"""What an engine averages: flat gradients, and the parameters that lie in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from byteps_thc._scheme.block_plan import RowSpan

if TYPE_CHECKING:  # parameters need no torch
    from torch import Tensor


@dataclass(frozen=True)
class ParameterSlice:
    """Where the gradient of a parameter lies in a buffer.

    name: the parameter's, the same on all ranks and in all runs; key of its residual. start, stop: elements of the
    buffer. row: elements of each row that has a scale of its own; 0: none has. skipped: elements of the first row that
    are not in the buffer.
    """

    name: str
    start: int
    stop: int
    row: int = 0
    skipped: int = 0

    @property
    def size(self) -> int:
        """Elements."""
        return self.stop - self.start

    @property
    def row_span(self) -> RowSpan | None:
        """Where the rows with scales are; None without any."""
        return RowSpan(self.start, self.stop, self.row, self.skipped) if self.row and self.size else None


@dataclass(frozen=True)
class GradientBuffer:
    """Gradients of several parameters in one tensor, such as a bucket of DDP.

    key: names the layout, the same on all ranks; another layout has another key. gradient: 1-D, contiguous; float32,
    float16 or bfloat16, or float64 where all parameters travel exactly (CompressionPolicy); CPU or CUDA.
    parameters: ascending and disjoint; gaps between them are padding.
    """

    key: str
    gradient: Tensor
    parameters: tuple[ParameterSlice, ...]
