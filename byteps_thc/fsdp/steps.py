"""Optimizer steps, as seen from the gradients, and groups whose gradients nothing compresses in them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch
from torch import nn

from byteps_thc._engine.steps import Steps
from byteps_thc.fsdp.parameters import NO_BACKWARD, ParameterGroup, parameter_groups


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


class UnhookedGroups:
    """Looks for such groups when the first step begins, and counts their gradients in every step.

    hooked: the groups that compression knows. report: is told which others there are; warns, or raises. count: counts
    the elements of a gradient that travels uncompressed, and the bytes of each; None: nobody counts.
    """

    def __init__(
        self,
        model: nn.Module,
        hooked: Iterable[ParameterGroup],
        report: Callable[[str], None],
        count: Callable[[int, int], None] | None = None,
    ) -> None:
        # The hooks, which have this, belong to the model.
        self._model = weakref.ref(model)
        self._hooked = {id(group.source) for group in hooked}
        self._report, self._count = report, count
        self._groups: list[ParameterGroup] | None = None

    def begin_step(self) -> None:
        """Call when a step begins."""
        if self._groups is None:
            self._groups = self._find()
        if self._count is None:
            return
        for group in self._groups:
            elements = sum(parameter.elements for parameter in group.trained())
            self._count(elements, group.gradient_dtype.itemsize)

    def _find(self) -> list[ParameterGroup]:
        model = self._model()
        everyone = [] if model is None else parameter_groups(model)
        groups = [group for group in everyone if id(group.source) not in self._hooked and group.trained()]
        if groups:
            share = sum(_elements(group) for group in groups) / sum(map(_elements, everyone))
            self._report(f"{', '.join(repr(group.name) for group in groups)}, {share:.0%} of the model's elements")
        return groups


def _elements(group: ParameterGroup) -> int:
    return sum(parameter.elements for parameter in group.parameters)
