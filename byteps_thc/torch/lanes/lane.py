"""Streams of gradients that are each sent in a fixed order: their plan, their exact sums, and their way to an engine.

Sums need the same order on all workers: each lane sends its buffers in the order of the backward pass, and waits for a
late gradient. Lane 0 has the layers that the next forward pass needs first, and overtakes buffers of other lanes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.futures import Future
from typing_extensions import override

from byteps_thc._engine.engine import Engine, GradientBuffer, ParameterSlice
from byteps_thc._engine.parameters import Packed
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.byteps.push_pull import Handle, declare, push_pull_async_inplace, synchronize
from byteps_thc._net.communicator import Waitable
from byteps_thc._scheme.adding.server_codes import ServerCodes
from byteps_thc._scheme.block_plan import BlockPlan, RowSpan
from byteps_thc._scheme.shares import even_spans, partition_name
from byteps_thc.torch.optimizer.place import NamedParameter


@dataclass(frozen=True)
class BufferPlan:
    """Parameters whose gradients share a buffer: a large one, or small ones. row: elements of a row; 0: no scales."""

    key: str
    parameters: tuple[NamedParameter, ...]
    dtype: torch.dtype
    compressed: bool
    row: int = 0

    @property
    def plan(self) -> BlockPlan:
        """Rows with scales."""
        return BlockPlan((), (RowSpan(0, self.size, self.row),) if self.row else ())

    @property
    def size(self) -> int:
        """Elements."""
        return sum(parameter.tensor.numel() for parameter in self.parameters)


@dataclass(frozen=True)
class Lane:
    """Buffers in the order of sending."""

    number: int
    buffers: tuple[BufferPlan, ...]

    def pieces(self, codes: ServerCodes) -> list[tuple[str, int, BlockPlan]]:
        """Return (name, coordinates, plan) of the pieces of an engine's buffers."""
        return [
            (partition_name(buffer.key, span), span.stop - span.start, buffer.plan.within(span))
            for buffer in self.buffers
            if buffer.compressed
            for span in even_spans(buffer.size, codes.partition_coordinates, codes.rotation_block)
        ]


def make_lanes(parameters: Sequence[NamedParameter], lanes: int, policy: CompressionPolicy) -> list[Lane]:
    """Divide parameters, in forward order, into at most `lanes` lanes of similar numbers of elements.

    Small parameters share a buffer per lane and dtype, which is sent last and exactly.
    """
    total = sum(p.tensor.numel() for p in parameters)
    members: list[list[NamedParameter]] = [[] for _ in range(lanes)]
    before = 0
    for parameter in parameters:
        middle = before + parameter.tensor.numel() / 2
        members[min(int(middle * lanes / total), lanes - 1) if total else 0].append(parameter)
        before += parameter.tensor.numel()
    filled = [lane for lane in members if lane]
    return [Lane(number, _buffers(number, lane, policy)) for number, lane in enumerate(filled)]


def _buffers(lane: int, parameters: Sequence[NamedParameter], policy: CompressionPolicy) -> tuple[BufferPlan, ...]:
    backward = list(reversed(parameters))
    large = [p for p in backward if p.tensor.numel() >= policy.bypass_elements]
    small = [p for p in backward if p.tensor.numel() < policy.bypass_elements]
    dtypes = sorted({p.tensor.dtype for p in small}, key=str)

    def row(parameter: NamedParameter) -> int:
        return policy.row_elements(parameter.name, parameter.tensor.shape)

    def compressed(parameter: NamedParameter) -> bool:
        return not policy.travels_exactly(parameter.name, parameter.tensor.numel(), row(parameter))

    return (
        *(BufferPlan(p.name, (p,), p.tensor.dtype, compressed=compressed(p), row=row(p)) for p in large),
        *(
            BufferPlan(
                f"small.{lane}.{dtype}", tuple(p for p in small if p.tensor.dtype == dtype), dtype, compressed=False
            )
            for dtype in dtypes
        ),
    )


@dataclass(frozen=True)
class _Sum(Waitable):
    handle: Handle
    deadline_s: float

    @override
    def wait(self) -> None:
        synchronize(self.handle, self.deadline_s)


class BytepsSum:
    """Names the sums of a lane by a parameter that no other optimizer has, their place in the step and their size.

    BytePS fixes a name's size, and its key by the order of declaration, which all workers must share.
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
        """Begin a step; all earlier sums are done."""
        self._place = 0

    def __call__(self, tensor: Tensor) -> _Sum:
        """Start replacing the tensor by its sum over the workers."""
        name = self._name(self._place, tensor.numel())
        self._place += 1
        handle = push_pull_async_inplace(tensor, average=False, name=name, priority=-self._lane)
        return _Sum(handle, self._deadline_s)

    def _name(self, place: int, size: int) -> str:
        return f"THC.sum.{self._owner}.{place}.{size}"


class LaneSender:
    """Gradients of a lane on their way through its engine."""

    def __init__(self, lane: Lane, engine: Engine) -> None:
        self.lane, self.engine = lane, engine
        self._buffers = [_Buffer(plan) for plan in lane.buffers]
        self._ready: set[str] = set()
        self._sent = 0

    def ready(self, parameter: NamedParameter) -> None:
        """Accept the gradient of a parameter, and send the buffers that are due."""
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


class _Buffer:
    def __init__(self, plan: BufferPlan) -> None:
        self._plan = plan
        self.names = frozenset(p.name for p in plan.parameters)
        slices, start = [], 0
        for parameter in plan.parameters:
            stop = start + parameter.tensor.numel()
            slices.append(ParameterSlice(parameter.name, start, stop, plan.row))
            start = stop
        self._packed = Packed(slices, start)
        self._future: Future[Tensor] | None = None

    def send(self, engine: Engine) -> None:
        flat = self._packed.pack(self._gradients())
        self._future = engine.all_reduce(GradientBuffer(self._plan.key, flat, self._packed.slices))

    def finish(self) -> None:
        assert self._future is not None
        self._packed.unpack(self._future.wait(), self._gradients())
        self._future = None

    def _gradients(self) -> list[Tensor]:
        gradients = []
        for parameter in self._plan.parameters:
            assert parameter.tensor.grad is not None
            gradients.append(parameter.tensor.grad)
        return gradients
