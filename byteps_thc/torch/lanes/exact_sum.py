"""Exact sums through BytePS for an engine: small tensors, and steps that are not compressed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from byteps_thc._net.byteps.push_pull import Handle, declare, push_pull_async_inplace, synchronize
from byteps_thc._net.communicator import Waitable
from byteps_thc.torch.lanes.plan import Lane


@dataclass(frozen=True)
class _Sum(Waitable):
    handle: Handle
    deadline_s: float

    @override
    def wait(self) -> None:
        synchronize(self.handle, self.deadline_s)


class BytepsSum:
    """Names the sums of a lane by a parameter that no other optimizer has, their place in the step and their size.

    BytePS fixes the size of a name.

    All names are declared here, in the order of the lanes: BytePS's keys follow the order of declaration, which would
    be any order once the lanes push at the same time.
    """

    def __init__(self, lane: Lane, deadline_s: float) -> None:
        self._lane = lane.number
        self._owner = lane.buffers[0].parameters[0].name
        self._deadline_s = deadline_s
        self._place = 0
        uncompressed_step = [buffer.size for buffer in lane.buffers]
        compressed_step = [buffer.size for buffer in lane.buffers if not buffer.compressed]
        for sizes in (compressed_step, uncompressed_step):
            for place, size in enumerate(sizes):
                declare(self._name(place, size))

    def start_step(self) -> None:
        """Begin a step; all sums of the one before are done."""
        self._place = 0

    def __call__(self, tensor: Tensor) -> _Sum:
        """Start replacing the tensor by its sum over the workers."""
        name = self._name(self._place, tensor.numel())
        self._place += 1
        handle = push_pull_async_inplace(tensor, average=False, name=name, priority=-self._lane)
        return _Sum(handle, self._deadline_s)

    def _name(self, place: int, size: int) -> str:
        return f"THC.sum.{self._owner}.{place}.{size}"
