"""What a process does for its worker's gradients when another one, the local root, sends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from typing_extensions import override

from byteps_thc._engine.buffers import GradientBuffer
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.saved_state import State, StateDict
from byteps_thc._engine.statistics import CompressionStats, StatsRecorder
from byteps_thc._net.communicator import ExactSum, Waitable
from byteps_thc._scheme.errors import ConfigurationError


@dataclass(frozen=True)
class _Nothing(Waitable):
    @override
    def wait(self) -> None:
        pass


class Bystander:
    """Stands for the inner engine of a NodeEngine: takes part in sums that BytePS makes of what all processes push.

    Here that is zeros. It keeps no residuals. Methods as those of Engine.
    """

    def __init__(self, policy: CompressionPolicy, exact: ExactSum, recorder: StatsRecorder) -> None:
        self._policy, self._exact, self._recorder = policy, exact, recorder
        self._steps = 0

    def start_step(self) -> None:
        """Count a step."""
        self._steps += 1

    def all_reduce(self, buffer: GradientBuffer) -> Waitable:
        """Take part in the sum of a buffer, if it travels exactly; nothing is written into its gradient."""
        compressed = any(not self._policy.travels_exactly(part.name, part.size) for part in buffer.parameters)
        if compressed and self._policy.compresses(max(self._steps - 1, 0)):
            return _Nothing()
        return self._exact(torch.zeros(buffer.gradient.numel(), device="cpu"))

    def protect_step(self) -> None:
        """Do nothing: the local root has the residuals."""

    def restore_residuals(self) -> None:
        """Do nothing: the local root has the residuals."""

    def use_loss_scale(self, scale: float) -> None:
        """Do nothing: the local root compares it with the other workers."""

    def scale_residuals(self, factor: float) -> None:
        """Do nothing: the local root has the residuals."""

    def state_dict(self) -> StateDict:
        """Return the step, and no residuals."""
        return {"local_root": False, "round": 0, "step": self._steps, "residuals": {}}

    def load_state_dict(self, state: State) -> None:
        """Take over a state_dict() of such a process; ConfigurationError for any other."""
        if not isinstance(state, Mapping) or state.get("local_root", True):
            raise ConfigurationError("this state is of the worker's local root, the process with local_rank() 0")
        step = state.get("step")
        if type(step) is not int or step < 0:
            raise ConfigurationError(f"state is damaged: its step is {step!r}, not a count")
        self._steps = step

    def statistics(self) -> CompressionStats:
        """Return zeros: this process sends nothing."""
        return self._recorder.snapshot()

    def close(self) -> None:
        """Do nothing: it has no threads, no sockets."""
