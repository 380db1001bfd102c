"""What a process does for its worker's gradients when another one, the local root, sends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import override

from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.buffers import GradientBuffer
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.statistics import CompressionStats, StatsRecorder
from byteps_thc.torch.hosts.worker_engine import Pending, WorkerEngine
from byteps_thc.transport.communicator import ExactSum


@dataclass(frozen=True)
class _Nothing(Pending):
    @override
    def wait(self) -> None:
        pass


class NonRootEngine(WorkerEngine):
    """Takes part in sums that BytePS makes of what all processes push: here that is zeros. It keeps no residuals."""

    def __init__(self, policy: CompressionPolicy, exact: ExactSum, recorder: StatsRecorder) -> None:
        self._policy, self._exact, self._recorder = policy, exact, recorder
        self._steps = 0

    @override
    def start_step(self) -> None:
        self._steps += 1

    @override
    def all_reduce(self, buffer: GradientBuffer) -> Pending:
        """Take part in the sum of a buffer, if it travels exactly; nothing is written into its gradient."""
        compressed = any(part.size >= self._policy.bypass_elements for part in buffer.parameters)
        if compressed and self._policy.compresses(max(self._steps - 1, 0)):
            return _Nothing()
        return self._exact(torch.zeros(buffer.gradient.numel()))

    @override
    def protect_step(self) -> None:
        pass  # the local root has the residuals

    @override
    def restore_residuals(self) -> None:
        pass  # the local root has the residuals

    @override
    def use_loss_scale(self, scale: float) -> None:
        pass  # the local root compares it with the other workers

    @override
    def scale_residuals(self, factor: float) -> None:
        pass  # the local root has the residuals

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the step, and no residuals."""
        return {"local_root": False, "round": 0, "step": self._steps, "residuals": {}}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict() of such a process; ConfigurationError for any other."""
        if not isinstance(state, Mapping) or state.get("local_root", True):
            raise ConfigurationError("this state is of the worker's local root, the process with local_rank() 0")
        step = state.get("step")
        if type(step) is not int or step < 0:
            raise ConfigurationError(f"state is damaged: its step is {step!r}, not a count")
        self._steps = step

    @override
    def statistics(self) -> CompressionStats:
        """Return zeros: this process sends nothing."""
        return self._recorder.snapshot()

    @override
    def close(self) -> None:
        pass  # no threads, no sockets
