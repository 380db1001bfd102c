"""What an engine averages: flat gradients, matrices with a row for every rank, and the parameters that lie in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
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


@dataclass(frozen=True)
class ShardMatrix:
    """The input of a reduce-scatter: a row for every rank, which gets the average of that row.

    Parameters lie in gradients of `rows` rows of `columns` elements, row by row in one flat tensor.

    key: names it, the same on all ranks; other places of parameters have another key. compressed: parameters that are
    compressed, ascending and disjoint; one that is sharded has a slice in every row. exact: columns (start, stop) of
    parameters that travel uncompressed. All else is padding. parameters: all of them in their order, a line for each,
    which must be the same on all ranks.
    """

    key: str
    rows: int
    columns: int
    compressed: tuple[ParameterSlice, ...]
    exact: tuple[tuple[int, int], ...] = ()
    parameters: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Elements of the whole gradient."""
        return self.rows * self.columns

    @cached_property
    def gaps(self) -> tuple[slice, ...]:
        """Everything that is not compressed, in the flat gradient."""
        return tuple(self._between_parameters())

    def _between_parameters(self) -> Iterator[slice]:
        position = 0
        for part in self.compressed:
            if part.start > position:
                yield slice(position, part.start)
            position = part.stop
        if position < self.size:
            yield slice(position, self.size)
