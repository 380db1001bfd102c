"""The input of a reduce-scatter: a matrix with a row for every rank, which gets the average of that row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from byteps_thc._engine.buffers import ParameterSlice


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
