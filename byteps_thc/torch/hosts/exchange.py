"""Several processes of one BytePS worker (the GPUs of a host): they average among themselves, and the local root sends.

BytePS's own intra-host reduction cannot be used: it hands its sums to nobody but BytePS's servers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._engine.buffers import GradientBuffer
from byteps_thc._engine.hierarchy.engine import NodeExchange, NodeLayout
from byteps_thc._engine.staging import make_staging
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc.torch.hosts.group import HostGroup


class RootExchange(NodeExchange[NodeLayout]):
    """The local root gets the average of all processes of its host, and hands its own over to them.

    workers, worker: BytePS's, each of several processes. Whether all workers average the same, their local roots find
    out.
    """

    def __init__(self, group: HostGroup, *, workers: int, worker: int) -> None:
        self.size, self.rank, self.device = workers, worker, torch.device("cpu")
        self._group = group

    @override
    def layout(self, buffer: GradientBuffer, recorder: StatsRecorder) -> NodeLayout:
        return NodeLayout(buffer, make_staging(buffer.gradient, recorder))

    @override
    def use_loss_scale(self, scale: float) -> None:
        pass  # the local root compares it with the other workers

    @override
    def scatter(self, layout: NodeLayout, buffer: GradientBuffer, round: int, *, new: bool) -> GradientBuffer:
        self._group.average(buffer.gradient)
        return buffer

    @override
    def gather(self, layout: NodeLayout, gradient: Tensor) -> None:
        self._group.share(gradient)
