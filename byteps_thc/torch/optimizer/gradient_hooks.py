"""When each gradient of an optimizer is averaged: as soon as its last backward pass has made it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from byteps_thc._net.byteps.claims import Claim
from byteps_thc._net.ending import Ending
from byteps_thc._scheme.errors import ConfigurationError, InputError
from byteps_thc.torch.parameters import NamedParameter
from byteps_thc.torch.reducers.compressed_reducer import CompressedReducer
from byteps_thc.torch.reducers.plain_reducer import PlainReducer


def check_passes(backward_passes_per_step: int) -> None:
    """Raise ConfigurationError unless it is positive."""
    if backward_passes_per_step < 1:
        raise ConfigurationError(f"backward_passes_per_step must be at least 1, not {backward_passes_per_step}")


class GradientHooks:
    """Counts the backward passes of each parameter and pushes its gradient in the last one of a step.

    reducer: None when there is only one worker; then nothing happens but counting. The parameters do not keep it:
    their model may live on without this optimizer. claim: what close() releases.
    """

    def __init__(
        self,
        parameters: Sequence[NamedParameter],
        reducer: PlainReducer | CompressedReducer | None,
        claim: Claim,
        backward_passes_per_step: int,
    ) -> None:
        self._parameters = parameters
        self._reducer = reducer
        self._push_lock = threading.Lock()  # autograd has a thread per device
        self._pushed: set[str] = set()
        self._averaged = False
        handles = [
            p.tensor.register_post_accumulate_grad_hook(self._hook_of(p))  # type: ignore[no-untyped-call]
            for p in parameters
            if reducer is not None
        ]
        # Engines have an end of their own at exit.
        self._ending = Ending(self, partial(_end, handles, reducer, claim), at_exit=False)
        self.set_backward_passes_per_step(backward_passes_per_step)

    @property
    def in_flight(self) -> bool:
        """Whether a gradient was pushed since the last synchronize()."""
        return bool(self._pushed)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Push gradients in the `passes`-th backward pass after a synchronize() from now on."""
        check_passes(passes)
        self.backward_passes_per_step = passes
        self._passes_left = {p.name: passes for p in self._parameters}

    def synchronize(self) -> None:
        """Wait until all gradients are averages; nothing to do when they are since the last backward pass or step.

        Gradients that are not complete or were not used are pushed now, as they are or as zeros: others may have them.
        """
        if self._reducer is None or self._averaged:
            return
        for parameter in reversed(self._parameters):
            if parameter.name not in self._pushed:
                if parameter.tensor.grad is None:
                    parameter.tensor.grad = torch.zeros_like(parameter.tensor)
                self._push(parameter)
        self._reducer.finish()
        self._pushed.clear()
        self._passes_left = dict.fromkeys(self._passes_left, self.backward_passes_per_step)
        self._averaged = True

    def step_taken(self) -> None:
        """The optimizer has used the averages: the next step needs new ones."""
        self._averaged = False

    def close(self) -> None:
        """Leave the network, take the hooks off the parameters and release the claim."""
        self._ending.close()

    def _hook_of(self, parameter: NamedParameter) -> Callable[[Tensor], None]:
        this = weakref.ref(self)

        def hook(_: Tensor) -> None:
            hooks = this()
            if hooks is not None:
                hooks._computed(parameter)

        return hook

    def _computed(self, parameter: NamedParameter) -> None:
        self._averaged = False
        if self._passes_left[parameter.name] == 0:
            raise InputError(
                "gradients were computed more than backward_passes_per_step times "
                f"({self.backward_passes_per_step}) before step() or synchronize(): increase it to accumulate them"
            )
        self._passes_left[parameter.name] -= 1
        if self._passes_left[parameter.name] == 0:
            self._push(parameter)

    def _push(self, parameter: NamedParameter) -> None:
        assert self._reducer is not None
        gradient = parameter.tensor.grad
        if gradient is None or gradient.layout != torch.strided:
            raise InputError(f"the gradient of {parameter.name!r} is sparse; BytePS averages dense gradients only")
        with self._push_lock:
            self._pushed.add(parameter.name)
            self._reducer.push(parameter)


def _end(handles: Sequence[Any], reducer: PlainReducer | CompressedReducer | None, claim: Claim) -> None:
    for handle in handles:
        handle.remove()
    if reducer is not None:
        reducer.close()
    claim.release()
