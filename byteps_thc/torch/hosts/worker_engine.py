"""What HostEngine needs of the engine below it, which averages over the BytePS workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from byteps_thc.pipeline.buffers import GradientBuffer
from byteps_thc.pipeline.loss_scaling import ScaledEngine
from byteps_thc.pipeline.statistics import CompressionStats


class Pending(Protocol):
    """Something under way."""

    def wait(self) -> object:
        """Wait for it. Raises TransportError or DeadlineError."""


class WorkerEngine(ScaledEngine, Protocol):
    """The part of Engine that is used: of a ThcEngine in the local root, of a NonRootEngine in the other processes."""

    def start_step(self) -> None:
        """Begin an optimizer step."""

    def all_reduce(self, buffer: GradientBuffer) -> Pending:
        """Start averaging a buffer over the workers, in place; or take part in it."""

    def state_dict(self) -> dict[str, Any]:
        """Return what this process's checkpoint needs."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict(); ConfigurationError when it does not fit."""

    def statistics(self) -> CompressionStats:
        """Return what compression did and what it cost."""

    def close(self) -> None:
        """End it. May be called again."""
