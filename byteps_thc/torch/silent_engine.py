"""What a process does for its worker's gradients when another process of the host speaks for the worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from byteps_thc.engines.buffers import GradientBuffer
from byteps_thc.engines.policy import CompressionPolicy
from byteps_thc.engines.transport import ExactSum
from byteps_thc.errors import ConfigurationError
from byteps_thc.statistics import CompressionStats, StatsRecorder


class Pending(Protocol):
    """Something under way."""

    def wait(self) -> object:
        """Wait for it. Raises TransportError or DeadlineError."""


@dataclass(frozen=True)
class _Nothing:
    def wait(self) -> None:
        """See Pending."""


class SilentEngine:
    """The part of Engine that HostEngine needs. BytePS adds up what all processes push: here that is zeros."""

    def __init__(self, policy: CompressionPolicy, exact: ExactSum, recorder: StatsRecorder) -> None:
        self._policy, self._exact, self._recorder = policy, exact, recorder
        self._steps = 0

    def start_step(self) -> None:
        """See Engine."""
        self._steps += 1

    def all_reduce(self, buffer: GradientBuffer) -> Pending:
        """Take part in the sum of a buffer, if it travels exactly; nothing is written into its gradient."""
        compressed = any(part.size >= self._policy.bypass_elements for part in buffer.parameters)
        if compressed and self._policy.compresses(max(self._steps - 1, 0)):
            return _Nothing()
        return self._exact(torch.zeros(buffer.gradient.numel()))

    def protect_step(self) -> None:
        """See Engine; there are no residuals."""

    def restore_residuals(self) -> None:
        """See Engine; there are no residuals."""

    def scale_residuals(self, factor: float) -> None:
        """The process that speaks has the residuals."""

    def state_dict(self) -> dict[str, Any]:
        """Return the step, and no residuals."""
        return {"silent": True, "round": 0, "step": self._steps, "residuals": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict() of such a process; ConfigurationError for any other."""
        if "silent" not in state:
            raise ConfigurationError("this state is of the process that speaks for its worker, with local_rank() 0")
        self._steps = state["step"]

    def statistics(self) -> CompressionStats:
        """Return zeros: this process sends nothing."""
        return self._recorder.snapshot()

    def close(self) -> None:
        """See Engine."""
