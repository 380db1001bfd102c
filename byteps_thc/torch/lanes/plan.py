"""How the gradients of a model are divided into streams that are each sent in a fixed order.

Sums need the same order on all workers, but gradients do not become ready in the same order everywhere. So each lane
sends its buffers in one order, that of the backward pass, and waits for a gradient that is late. Lanes do not wait for
each other: lane 0 has the layers that the next forward pass needs first, and goes ahead of what the others have queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from byteps_thc._engine.partitioning import even_spans
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.block_plan import BlockPlan, RowSpan
from byteps_thc._scheme.config import ThcConfig
from byteps_thc.torch.parameters import NamedParameter


@dataclass(frozen=True)
class BufferPlan:
    """Parameters whose gradients travel in one buffer: a large one, or small ones, which are not compressed.

    row: elements of each row that has a scale of its own; 0: none has.
    """

    key: str
    parameters: tuple[NamedParameter, ...]
    dtype: torch.dtype
    compressed: bool
    row: int = 0

    @property
    def plan(self) -> BlockPlan:
        """Which rows have scales."""
        return BlockPlan((), (RowSpan(0, self.size, self.row),) if self.row else ())

    @property
    def size(self) -> int:
        """Elements."""
        return sum(parameter.tensor.numel() for parameter in self.parameters)


@dataclass(frozen=True)
class Lane:
    """Buffers in the order in which they are sent."""

    number: int
    buffers: tuple[BufferPlan, ...]

    def pieces(self, config: ThcConfig) -> list[tuple[str, int, BlockPlan]]:
        """Return (name, coordinates, plan) of the pieces that an engine cuts the buffers into."""
        return [
            (f"{buffer.key}[{span.start}:{span.stop}]", span.stop - span.start, buffer.plan.within(span))
            for buffer in self.buffers
            if buffer.compressed
            for span in even_spans(buffer.size, config.partition_coordinates, config.rotation_block)
        ]


def make_lanes(parameters: Sequence[NamedParameter], lanes: int, policy: CompressionPolicy) -> list[Lane]:
    """Divide parameters, given in forward order, into at most `lanes` lanes of about as many elements.

    Small parameters, which travel exactly, share a buffer per lane and dtype, which is sent last.
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

    def compressed(parameter: NamedParameter) -> bool:
        return not policy.travels_exactly(parameter.name, parameter.tensor.numel())

    def row(parameter: NamedParameter) -> int:
        return policy.row_elements(parameter.name, parameter.tensor.shape)

    return (
        *(BufferPlan(p.name, (p,), p.tensor.dtype, compressed=compressed(p), row=row(p)) for p in large),
        *(
            BufferPlan(
                f"small.{lane}.{dtype}", tuple(p for p in small if p.tensor.dtype == dtype), dtype, compressed=False
            )
            for dtype in dtypes
        ),
    )
