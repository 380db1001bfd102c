"""Optimizer steps, derived from gradients, and averages that travel while backward runs.

torch uses a reduce-scatter's output at once, and the CPU has no stream to postpone that. Its output is negative zeros,
which survive division and conversion. The averages are added to the gradients at the end of the backward pass.
"""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from byteps_thc._base.errors import ConfigurationError, InputError
from byteps_thc._base.settings import warn_once
from byteps_thc._base.torch_private import NO_BACKWARD, at_end_of_backward, current_backward
from byteps_thc._engine.stages import Reduction
from byteps_thc._engine.steps import Steps
from byteps_thc.fsdp.parameters import ParameterGroup, ShardedParameter, parameter_groups, placed


class BackwardSteps:
    """Begins a step of the engine with the first gradient of every backward pass.

    A new pass only begins a step if its group has a gradient in the step already: checkpoint(use_reentrant=True) nests
    a pass per module, and pipeline schedules reduce outside of any. A group may come several times in one pass.

    settle: ends all gradients in flight, before a step or another loss scale. began: called after a step's begin.
    """

    def __init__(self, steps: Steps, began: Callable[[], None], settle: Callable[[], None] = lambda: None) -> None:
        self._steps, self._settle, self._began = steps, settle, began
        self.scaling = steps.scaling
        self._backward = NO_BACKWARD  # the last gradient's
        self._reduced: set[str] = set()  # groups with a gradient in this step

    def begin(self, group: str) -> None:
        """Call before every gradient of the parameter group `group`."""
        backward = current_backward()
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
    """Finds groups without compression when the first step begins, and counts their gradients in every step.

    hooked: the compressed groups. caller: the function that has compressed them, for the warning of the first rank.
    count: called with elements and bytes of each of the others. refused: why there may be none; empty: there may.
    """

    def __init__(
        self,
        model: nn.Module,
        hooked: Iterable[ParameterGroup],
        caller: str,
        count: Callable[[int, int], None] = lambda _, __: None,
        refused: str = "",
    ) -> None:
        # A weak reference, because the model has the hooks, which have this object.
        self._model = weakref.ref(model)
        self._hooked = {id(group.source) for group in hooked}
        self._caller, self._count, self._refused = caller, count, refused
        self._groups: list[ParameterGroup] | None = None

    def begin_step(self) -> None:
        """Call when a step begins."""
        if self._groups is None:
            self._groups = self._find()
        for group in self._groups:
            self._count(sum(own.elements for own in group.trained()), group.gradient_dtype.itemsize)

    def _find(self) -> list[ParameterGroup]:
        model = self._model()
        everyone = [] if model is None else parameter_groups(model, replicated=True)
        groups = [group for group in everyone if id(group.source) not in self._hooked and group.trained()]
        if groups:
            late, total = (sum(own.elements for group in of for own in group.parameters) for of in (groups, everyone))
            text = (
                f"{self._caller}() was called before fully_shard() of {', '.join(repr(own.name) for own in groups)}, "
                f"{late / total:.0%} of the model's elements: {self._refused or 'they travel uncompressed'}. Call it "
                "after the last fully_shard()"
            )
            if self._refused:
                raise ConfigurationError(text)
            if everyone[0].process_group.rank() == 0:
                warn_once(text)
        return groups


#: x + NOTHING is x, bit for bit, and so is NOTHING + x: with 0.0, -0.0 would become 0.0.
NOTHING = -0.0


@dataclass(frozen=True)
class PendingGradient:
    """The gradient of `trained`, of a parameter group. factor: converts the average to torch's requested reduction."""

    group: ParameterGroup
    trained: tuple[ShardedParameter, ...]
    reduction: Reduction
    factor: int

    def finish(self) -> None:
        """Wait for the average, and add it to the gradients of the sharded parameters."""
        with torch.no_grad():
            gradient = self.group.finished(self.group.multiply(self.reduction.wait(), self.factor))
            for parameter, start in placed(self.trained):
                own = parameter.source.sharded_param.grad
                if own is None:
                    raise InputError(
                        f"the gradient of {parameter.name!r} was taken away before the end of backward, when its "
                        "average was not there yet: use parameter.register_post_accumulate_grad_hook, for which "
                        "averages are waited for"
                    )
                local = own.to_local()
                local.add_(gradient[start : start + local.numel()].view_as(local))


class _BackwardPass:
    """Pending gradients of a backward pass, by group. Only the pass holds them: a failed pass drops them."""

    def __init__(self, under_way: list[Reduction]) -> None:
        self.pending: dict[str, PendingGradient] = {}
        self.failed = False  # the error's traceback may keep this object
        self._under_way = under_way

    def finish_group(self, group: str) -> None:
        try:
            self.pending.pop(group).finish()
        except BaseException:
            self.failed = True
            self.pending.clear()
            raise

    def finish(self) -> None:
        while self.pending:
            self.finish_group(next(iter(self.pending)))
        self._under_way.clear()


class PendingGradients:
    """A model's pending gradients, in the order of their reductions. Used by the backward thread alone."""

    def __init__(self) -> None:
        self._pass: Callable[[], _BackwardPass | None] = lambda: None
        self._under_way: list[Reduction] = []

    def add(self, gradient: PendingGradient) -> None:
        """Let the current backward pass finish a gradient at its end, after torch's own callback."""
        current = self._current()
        if current is None:
            current = _BackwardPass(self._under_way)
            at_end_of_backward(current.finish)
            self._pass = weakref.ref(current)
        current.pending[gradient.group.name] = gradient
        self._under_way.append(gradient.reduction)

    def finish(self, group: str) -> None:
        """Finish the pending gradient of a group, before another one of the group is added."""
        current = self._current()
        if current is None:
            self.settle()  # a failed pass may have left one
        elif group in current.pending:
            current.finish_group(group)

    def wait_taken(self, kept: int) -> None:
        """Wait until at most `kept` reductions hold their inputs."""
        for reduction in self._under_way[: max(len(self._under_way) - kept, 0)]:
            reduction.wait_taken()

    def settle(self) -> None:
        """Finish all; the rest of a failed backward pass is waited for, and dropped."""
        current = self._current()
        if current is not None:
            current.finish()
        for reduction in self._under_way:
            reduction.wait()
        self._under_way.clear()

    def _current(self) -> _BackwardPass | None:
        current = self._pass()
        return None if current is None or current.failed else current
