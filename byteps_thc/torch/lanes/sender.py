"""Feeds an engine with the gradients of a lane, in the lane's order, each when it and those before it are ready."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.futures import Future

from byteps_thc._engine.buffers import GradientBuffer, ParameterSlice
from byteps_thc._engine.engine import Engine
from byteps_thc.torch.lanes.plan import BufferPlan, Lane
from byteps_thc.torch.parameters import NamedParameter


class LaneSender:
    """Gradients of a lane on their way through its engine."""

    def __init__(self, lane: Lane, engine: Engine) -> None:
        self.lane = lane
        self.engine = engine
        self._buffers = [_Buffer(plan) for plan in lane.buffers]
        self._ready: set[str] = set()
        self._sent = 0

    def ready(self, parameter: NamedParameter) -> None:
        """Take the gradient of a parameter, and send the buffers whose turn it is now."""
        self._ready.add(parameter.name)
        while self._sent < len(self._buffers) and self._buffers[self._sent].names <= self._ready:
            self._buffers[self._sent].send(self.engine)
            self._sent += 1

    def finish(self) -> None:
        """Wait until all gradients of the lane are averages. Raises the engine's error."""
        for buffer in self._buffers:
            buffer.finish()
        self._ready.clear()
        self._sent = 0


@dataclass
class _Buffer:
    """A buffer of the lane; flat is its memory when the gradients cannot be used where they are."""

    plan: BufferPlan
    names: frozenset[str] = field(init=False)
    slices: tuple[ParameterSlice, ...] = field(init=False)
    flat: Tensor | None = None
    future: Future[Tensor] | None = None

    def __post_init__(self) -> None:
        self.names = frozenset(p.name for p in self.plan.parameters)
        slices, start = [], 0
        for parameter in self.plan.parameters:
            stop = start + parameter.tensor.numel()
            slices.append(ParameterSlice(parameter.name, start, stop, self.plan.row))
            start = stop
        self.slices = tuple(slices)

    def send(self, engine: Engine) -> None:
        gradients = self._gradients()
        if len(gradients) == 1 and gradients[0].is_contiguous():
            flat = gradients[0].view(-1)
        else:
            flat = self.flat = self._gather(gradients)
        self.future = engine.all_reduce(GradientBuffer(self.plan.key, flat, self.slices))

    def finish(self) -> None:
        assert self.future is not None
        flat = self.future.wait()
        self.future = None
        if flat is self.flat:
            for gradient, part in zip(self._gradients(), self.slices, strict=True):
                gradient.copy_(flat[part.start : part.stop].view(gradient.shape))

    def _gather(self, gradients: list[Tensor]) -> Tensor:
        if self.flat is None:
            self.flat = torch.empty(self.slices[-1].stop, dtype=self.plan.dtype, device=gradients[0].device)
        for gradient, part in zip(gradients, self.slices, strict=True):
            self.flat[part.start : part.stop].view(gradient.shape).copy_(gradient)
        return self.flat

    def _gradients(self) -> list[Tensor]:
        gradients = []
        for parameter in self.plan.parameters:
            assert parameter.tensor.grad is not None
            gradients.append(parameter.tensor.grad)
        return gradients
