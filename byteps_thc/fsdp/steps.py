"""Optimizer steps, as seen from the gradients: a step begins when a parameter group is reduced again."""

from __future__ import annotations

from collections.abc import Callable

import torch

from byteps_thc._engine.steps import Steps
from byteps_thc.fsdp.parameters import NO_BACKWARD


class BackwardSteps:
    """Begins a step of the engine with the first gradient of every backward pass.

    That is the first gradient of a group that the step has one of already. The backward pass alone does not tell:
    checkpoint(use_reentrant=True) nests one per module in it, and pipeline schedules reduce outside of any. Within one
    backward pass a group may come several times, once for every forward pass of its module.

    steps: of the engine. settle: ends what is in flight, before the engine begins a step or has another loss scale.
    began: called when a step has begun.
    """

    def __init__(
        self,
        steps: Steps,
        began: Callable[[], None],
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self._steps, self._settle, self._began = steps, settle, began
        self.scaling = steps.scaling
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
