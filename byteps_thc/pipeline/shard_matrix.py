"""The input of a reduce-scatter: a matrix with a row for every rank, which gets the average of that row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from byteps_thc.pipeline.buffers import ParameterSlice


@dataclass(frozen=True)
class ShardMatrix:
    """Where parameters lie in gradients of `rows` rows of `columns` elements, row by row in one flat tensor.

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


class ExactColumns:
    """Columns that travel uncompressed, side by side in float32. Of a row's average all ranks get to know all."""

    def __init__(self, matrix: ShardMatrix, gradient: Tensor) -> None:
        self._columns = matrix.exact
        rows = gradient.view(matrix.rows, matrix.columns)
        parts = [rows[:, start:stop].float() for start, stop in matrix.exact]
        self.sums = torch.cat(parts, dim=1) if parts else gradient.new_zeros(matrix.rows, 0, dtype=torch.float32)

    def write_average(self, output: Tensor, worker: int, workers: Tensor) -> None:
        """Write the columns of row `worker` of the sums, divided by `workers`, float32[]."""
        # A tensor: torch multiplies by the inverse of a number on a GPU, which has other bits.
        averages = torch.split(self.sums[worker] / workers, [stop - start for start, stop in self._columns])
        for (start, stop), average in zip(self._columns, averages, strict=True):
            output[start:stop] = average
