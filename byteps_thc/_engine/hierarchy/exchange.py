"""What happens within a node of a mesh: every rank gets the average of its shard, and later those of all shards."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._engine.agreement import Questions
from byteps_thc._engine.buffers import GradientBuffer
from byteps_thc._engine.dtypes import saturated
from byteps_thc._engine.hierarchy.bucket_shards import BucketShards
from byteps_thc._engine.hierarchy.engine import NodeExchange
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._net.communicator import Communicator
from byteps_thc._net.mesh import MeshGroups


class ShardExchange(NodeExchange[BucketShards]):
    """Reduce-scatter and all-gather of gradients among the ranks of a node, exact but for the gradient's own type.

    groups: of this rank. scatter, gather: communicators of the fast dimension, of tensors on `device`, one for each, so
    that two threads or streams may use them. A reduce-scatter is an all-to-all and a sum in float32, in the order of
    the ranks: gloo has no other, and NCCL's would round bfloat16 at every rank. It moves as many bytes. questions:
    asked before shards are added up. asks_once: for a layout, because the caller waits.
    """

    def __init__(
        self,
        groups: MeshGroups,
        scatter: Communicator,
        gather: Communicator,
        questions: Questions,
        device: torch.device,
        *,
        asks_once: bool = False,
    ) -> None:
        self.size, self.rank, self.device = groups.size, groups.rank, device
        self._asks_once = asks_once
        self._fast = groups.fast
        self._scatter, self._gather, self._questions = scatter, gather, questions
        self._sent, self._received, self._gathered = _Memory(), _Memory(), _Memory()

    @override
    def layout(self, buffer: GradientBuffer, recorder: StatsRecorder) -> BucketShards:
        return BucketShards(buffer, self._fast.rank(), self._fast.size(), self.device, recorder)

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._questions.use_loss_scale(scale)

    @override
    def scatter(self, layout: BucketShards, buffer: GradientBuffer, round: int, *, new: bool) -> GradientBuffer:
        if new or not self._asks_once:
            sizes = f"{layout.size} elements of {buffer.gradient.dtype}"
            self._questions.require_same(layout.contents, layout.size, round, sizes, f"round {round}")
        self._average(layout, buffer.gradient)
        return layout.shard

    @override
    def gather(self, layout: BucketShards, gradient: Tensor) -> None:
        gathered = self._gathered.matrix(layout, gradient)
        shard = layout.shard.gradient
        if shard.is_cuda:  # it goes with its layout, perhaps before this stream gets here
            shard.record_stream(torch.cuda.current_stream(shard.device))
        own = saturated(shard, gradient.dtype)
        self._gather.all_gather(_bytes(gathered), _bytes(own)).wait()
        layout.take(gathered, gradient)

    def _average(self, layout: BucketShards, gradient: Tensor) -> None:
        """Write the average of this rank's shard over the node to layout.shard.gradient."""
        sent, received = self._sent.matrix(layout, gradient), self._received.matrix(layout, gradient)
        layout.fill(sent, gradient)
        self._scatter.all_to_all(_bytes(received), _bytes(sent)).wait()
        average = layout.shard.gradient
        _sum(received, average)
        # A tensor: torch multiplies by the inverse of a number on a GPU, which has other bits.
        average.div_(torch.full((), float(layout.ranks), device=average.device))


class _Memory:
    """Memory that the buffers have in turn, as large as the largest."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8, device="cpu")

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
