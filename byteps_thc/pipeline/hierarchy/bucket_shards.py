"""How a gradient buffer is cut into shards: parameter by parameter, as FSDP does.

So a rank has the same part of a parameter wherever DDP puts the parameter, and its residual is that part's.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from byteps_thc.errors import InputError
from byteps_thc.pipeline.buffers import GradientBuffer, ParameterSlice
from byteps_thc.pipeline.layout import check_buffer
from byteps_thc.pipeline.staging import Staging, make_staging
from byteps_thc.transport.recorder import TrafficRecorder


def shard_elements(elements: int, rank: int, ranks: int) -> int:
    """Return how many elements of a parameter the rank has: shards are equal, the last ones may be short or empty."""
    columns = -(-elements // ranks)
    return min(max(elements - rank * columns, 0), columns)


class BucketShards:
    """The shards of buffers of one layout, for all that come; InputError for a buffer that cannot be averaged.

    A row for each rank of the fast dimension: matrix[ranks, columns], in which every parameter has its columns, and is
    padded with zeros. shard: this rank's row as a buffer, float32, while it is averaged over the slow dimension.
    device: where shards are exchanged; staging brings gradients to the host, if that is elsewhere. recorder: counts its
    copies.
    """

    def __init__(
        self, buffer: GradientBuffer, rank: int, ranks: int, device: torch.device, recorder: TrafficRecorder
    ) -> None:
        check_buffer(buffer)
        gradient = buffer.gradient
        self.key, self.size, self.parameters = buffer.key, gradient.numel(), buffer.parameters
        if sum(part.size for part in self.parameters) != self.size:
            raise InputError(f"buffer {buffer.key!r} has elements of no parameter: they would have no shard")
        self.names = frozenset(part.name for part in self.parameters)
        self.ranks = ranks
        self._columns = [-(-part.size // ranks) for part in self.parameters]
        self.columns = sum(self._columns)
        self.padded = ranks * self.columns != self.size
        self.shard = GradientBuffer(
            f"{buffer.key}, shard {rank} of {ranks}",
            torch.zeros(self.columns, device=device),
            tuple(self._own_slices(rank)),
        )
        self.staging: Staging | None = None if gradient.device == device else make_staging(gradient, recorder)

    def fill(self, matrix: Tensor, gradient: Tensor) -> None:
        """Write a gradient to matrix[ranks, columns], and zeros to the padding."""
        if self.padded:
            matrix.zero_()
        for part, place in self._places(gradient, matrix):
            place.copy_(part)

    def take(self, matrix: Tensor, gradient: Tensor) -> None:
        """Overwrite a gradient by what matrix[ranks, columns] has of it."""
        for part, place in self._places(gradient, matrix):
            part.copy_(place)

    def _own_slices(self, rank: int) -> Iterator[ParameterSlice]:
        start = 0
        for part, columns in zip(self.parameters, self._columns, strict=True):
            if elements := shard_elements(part.size, rank, self.ranks):
                yield ParameterSlice(part.name, start, start + elements)
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
