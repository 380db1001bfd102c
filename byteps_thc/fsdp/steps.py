"""Optimizer steps, as seen from the gradients: a step begins when a parameter group is reduced again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from byteps_thc.fsdp.parameters import NO_BACKWARD
from byteps_thc.pipeline.drift_warning import DriftWarning
from byteps_thc.pipeline.loss_scaling import LossScale, LossScaling, ScaledEngine
from byteps_thc.pipeline.statistics import CompressionStats, RankZeroLog


class SteppedEngine(ScaledEngine, Protocol):
    """What of an engine is needed here."""

    def start_step(self) -> None:
        """Begin a step."""

    def statistics(self) -> CompressionStats:
        """Return the figures."""


class BackwardSteps:
    """Begins a step of the engine with the first gradient of every backward pass.

    That is the first gradient of a group that the step has one of already. The backward pass alone does not tell:
    checkpoint(use_reentrant=True) nests one per module in it, and pipeline schedules reduce outside of any. Within one
    backward pass a group may come several times, once for every forward pass of its module.

    grad_scaler: see LossScaling. log_every: steps per log line of rank 0; 0: none. drift_warning: None: there is none.
    settle: ends what is in flight, before the engine begins a step or changes residuals. scale_compared: LossScaling's.
    """

    def __init__(
        self,
        engine: SteppedEngine,
        grad_scaler: LossScale | None,
        log_every: int,
        rank: int,
        drift_warning: DriftWarning | None = None,
        settle: Callable[[], None] = lambda: None,
        *,
        scale_compared: bool = True,
    ) -> None:
        self._engine = engine
        self._settle = settle
        self._drift_warning = drift_warning
        self.scaling = LossScaling(grad_scaler, [engine], sees_all=False, compared=scale_compared)
        self._log = RankZeroLog(every=log_every, rank=rank)
        self._backward = NO_BACKWARD  # of the last gradient
        self._reduced: set[str] = set()  # groups with a gradient in this step
        self._steps = 0

    def begin(self, group: str) -> None:
        """Call before every gradient of a parameter group, which has that name."""
        backward = torch._C._current_graph_task_id()
        if backward == NO_BACKWARD or backward != self._backward:
            self._backward = backward
            if self.scaling.enabled:
                self._settle()
                self.scaling.begin_backward()
            if not self._steps or group in self._reduced:
                self._start_step()
        self._reduced.add(group)

    def _start_step(self) -> None:
        self._settle()
        if self._log.due(self._steps):
            self._log.update(self._engine.statistics())  # of the steps before
        self._steps += 1
        if self._drift_warning is not None:
            self._drift_warning.step_began()
        self._reduced.clear()
        self._engine.start_step()
