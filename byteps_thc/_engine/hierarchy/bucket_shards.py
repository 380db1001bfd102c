"""How a gradient buffer is cut into shards: parameter by parameter, as FSDP does.

So a rank has the same part of a parameter wherever DDP puts the parameter, and its residual is that part's. On a device
all parts are copied in one launch, by a table of them (part_copies.py); in host memory, where a call costs little,
and an index would cost more than the copy, parameter by parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from byteps_thc._engine.agreement import contents_of
from byteps_thc._engine.buffers import GradientBuffer, ParameterSlice
from byteps_thc._engine.hierarchy.engine import NodeLayout
from byteps_thc._engine.layout import check_buffer
from byteps_thc._engine.staging import make_staging
from byteps_thc._net.recorder import TrafficRecorder

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc._scheme.gpu.part_copies import PartCopies


def shard_elements(elements: int, rank: int, ranks: int) -> int:
    """Return how many elements of a parameter the rank has: shards are equal, the last ones may be short or empty."""
    columns = -(-elements // ranks)
    return min(max(elements - rank * columns, 0), columns)


class BucketShards(NodeLayout):
    """The shards of buffers of one layout, for all that come; InputError for a buffer that cannot be averaged.

    A row for each rank of the fast dimension: matrix[ranks, columns], in which every parameter has its columns, and is
    padded with zeros. What lies between parameters has no shard, and stays as it is. shard: this rank's row as a
    buffer, float32, while it is averaged over the slow dimension. device: where shards are exchanged; staging: brings
    gradients there, if it is the host and they are elsewhere. recorder: counts its copies.
    """

    def __init__(
        self, buffer: GradientBuffer, rank: int, ranks: int, device: torch.device, recorder: TrafficRecorder
    ) -> None:
        check_buffer(buffer)
        gradient = buffer.gradient
        super().__init__(buffer, make_staging(gradient, recorder) if device.type == "cpu" else None)
        self.size, self.parameters = gradient.numel(), buffer.parameters
        self.contents = contents_of(buffer.key, buffer.parameters)
        self.ranks = ranks
        self._columns = [-(-part.size // ranks) for part in self.parameters]
        self.columns = sum(self._columns)
        self.padded = ranks * self.columns != sum(part.size for part in self.parameters)
        self.shard = GradientBuffer(
            f"{buffer.key}, shard {rank} of {ranks}",
            torch.zeros(self.columns, device=device),
            tuple(self._own_slices(rank)),
        )
        self._copies = None if device.type == "cpu" else _copies_on_device([*self.row_parts()], device)

    def row_parts(self) -> Iterator[tuple[int, int]]:
        """Give what the matrix has, row by row: first element in the gradient, -1 for padding; elements."""
        for row in range(self.ranks):
            for part, columns in zip(self.parameters, self._columns, strict=True):
                elements = shard_elements(part.size, row, self.ranks)
                if elements:
                    yield part.start + row * columns, elements
                if elements < columns:
                    yield -1, columns - elements

    def fill(self, matrix: Tensor, gradient: Tensor) -> None:
        """Write a gradient to matrix[ranks, columns], and zeros to the padding."""
        if self._copies is not None:
            self._copies.pack(gradient, matrix.view(-1))
            return
        if self.padded:
            matrix.zero_()
        for part, place in self._places(gradient, matrix):
            place.copy_(part)

    def take(self, matrix: Tensor, gradient: Tensor) -> None:
        """Overwrite a gradient by what matrix[ranks, columns] has of it."""
        if self._copies is not None:
            self._copies.unpack(matrix.view(-1), gradient)
            return
        for part, place in self._places(gradient, matrix):
            part.copy_(place)

    def _own_slices(self, rank: int) -> Iterator[ParameterSlice]:
        start = 0
        for part, columns in zip(self.parameters, self._columns, strict=True):
            if elements := shard_elements(part.size, rank, self.ranks):
                skipped = (part.skipped + rank * columns) % part.row if part.row else 0
                yield ParameterSlice(part.name, start, start + elements, part.row, skipped)
            start += columns

    def _places(self, gradient: Tensor, matrix: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Give parts of the gradient with their places in the matrix, of the same shape."""
        start = 0
        for part, columns in zip(self.parameters, self._columns, strict=True):
            if part.size:
                full, rest = divmod(part.size, columns)  # rows without padding, elements of the row behind them
                end = part.stop - rest
                yield gradient[part.start : end].view(full, columns), matrix[:full, start : start + columns]
                if rest:
                    yield gradient[end : part.stop], matrix[full, start : start + rest]
            start += columns


def _copies_on_device(parts: Sequence[tuple[int, int]], device: torch.device) -> PartCopies:
    from byteps_thc._scheme.gpu.part_copies import PartCopies  # which takes Triton

    return PartCopies(parts, device)
