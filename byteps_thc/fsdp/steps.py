"""Optimizer steps, as seen from the gradients: a step begins when a parameter group is reduced again."""

from __future__ import annotations

from collections.abc import Callable

import torch

from byteps_thc._engine.drift_warning import DriftWarning
from byteps_thc._engine.engine import Engine
from byteps_thc._engine.loss_scaling import LossScale
from byteps_thc._engine.steps import Steps
from byteps_thc.fsdp.parameters import NO_BACKWARD


class BackwardSteps:
    """Begins a step of the engine with the first gradient of every backward pass.

    That is the first gradient of a group that the step has one of already. The backward pass alone does not tell:
    checkpoint(use_reentrant=True) nests one per module in it, and pipeline schedules reduce outside of any. Within one
    backward pass a group may come several times, once for every forward pass of its module.

    grad_scaler: see LossScaling. log_every: steps per log line of rank 0; 0: none. drift_warning: None: there is none.
    settle: ends what is in flight, before the engine begins a step or has another loss scale. began: called when a step
    has begun. scale_compared: LossScaling's.
    """

    def __init__(
        self,
        engine: Engine,
        grad_scaler: LossScale | None,
        log_every: int,
        rank: int,
        drift_warning: DriftWarning | None = None,
        settle: Callable[[], None] = lambda: None,
        began: Callable[[], None] = lambda: None,
        *,
        scale_compared: bool = True,
    ) -> None:
        self._settle, self._began = settle, began
        self._steps = Steps(
            [engine],
            grad_scaler,
            compared=scale_compared,
            log_every=log_every,
            rank=rank,
            drift_warning=drift_warning,
        )
        self.scaling = self._steps.scaling
        self._backward = NO_BACKWARD  # of the last gradient
        self._reduced: set[str] = set()  # groups with a gradient in this step

    def begin(self, group: str) -> None:
        """Call before every gradient of a parameter group, which has that name."""
        backward = torch._C._current_graph_task_id()
        if backward == NO_BACKWARD or backward != self._backward:
            self._backward = backward
            if self.scaling.enabled:
                self._settle()
                self.scaling.begin_backward()
            if not self._steps.count or group in self._reduced:
                self._settle()
                self._reduced.clear()
                self._steps.start()
                self._began()
        self._reduced.add(group)
