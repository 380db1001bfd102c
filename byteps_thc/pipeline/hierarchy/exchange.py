"""What happens within the fast dimension: every rank gets the average of its shard, and later those of all shards."""

from __future__ import annotations

import torch
from torch import Tensor

from byteps_thc.pipeline.hierarchy.bucket_shards import BucketShards
from byteps_thc.transport.communicator import Communicator


class ShardExchange:
    """Reduce-scatter and all-gather of gradients among the ranks of a node, exact but for the gradient's own type.

    scatter, gather: communicators of the fast dimension, one for each, so that two threads or streams may use them. A
    reduce-scatter is an all-to-all and a sum in float32, in the order of the ranks: gloo has no other, and NCCL's would
    round bfloat16 at every rank. It moves as many bytes.
    """

    def __init__(self, scatter: Communicator, gather: Communicator) -> None:
        self._scatter, self._gather = scatter, gather
        self._sent, self._received, self._gathered = _Memory(), _Memory(), _Memory()

    def scatter(self, shards: BucketShards, gradient: Tensor) -> None:
        """Write the average of this rank's shard over the node to shards.shard.gradient."""
        sent, received = self._sent.matrix(shards, gradient), self._received.matrix(shards, gradient)
        shards.fill(sent, gradient)
        self._scatter.all_to_all(_bytes(received), _bytes(sent)).wait()
        average = shards.shard.gradient
        _sum(received, average)
        # A tensor: torch multiplies by the inverse of a number on a GPU, which has other bits.
        average.div_(torch.full((), float(shards.ranks), device=average.device))

    def gather(self, shards: BucketShards, gradient: Tensor) -> None:
        """Overwrite a gradient by the shards of all ranks of the node."""
        gathered = self._gathered.matrix(shards, gradient)
        own = shards.shard.gradient.to(gradient.dtype)
        self._gather.all_gather(_bytes(gathered), _bytes(own)).wait()
        shards.take(gathered, gradient)


class _Memory:
    """Memory that the buffers have in turn, as large as the largest."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def matrix(self, shards: BucketShards, like: Tensor) -> Tensor:
        """Return [ranks, columns] of the type and device of `like`."""
        size = shards.ranks * shards.columns * like.element_size()
        if self._bytes.numel() < size or self._bytes.device != like.device:
            self._bytes = torch.empty(size, dtype=torch.uint8, device=like.device)
        return self._bytes[:size].view(like.dtype).view(shards.ranks, shards.columns)


def _sum(rows: Tensor, out: Tensor) -> None:
    """Write the sum of the rows, in float32, to `out`."""
    if rows.is_cuda:
        torch.sum(rows, 0, dtype=torch.float32, out=out)
        return
    out.copy_(rows[0])  # torch.sum takes three times as long on the CPU when the rows have another type
    for row in rows[1:]:
        out.add_(row)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)
