"""Parameter groups that fully_shard() made after compression was set up: nothing compresses their gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

from torch import nn

from byteps_thc.fsdp.parameters import ParameterGroup, parameter_groups


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
