"""DistributedOptimizer: a torch optimizer whose gradients are averaged over the workers before each step."""

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from byteps_thc._base.errors import ConfigurationError, InputError
from byteps_thc._engine.parameters import DTYPES
from byteps_thc._engine.statistics import CompressionStats
from byteps_thc._net.byteps import process
from byteps_thc._net.byteps.process import Claim
from byteps_thc._net.ending import Ending
from byteps_thc._net.replicas import Replicas
from byteps_thc.torch.gradient_reducers import CompressedReducer, PlainReducer
from byteps_thc.torch.operations import BytepsReplicas
from byteps_thc.torch.optimizer.place import NamedParameter, name_parameters, take_place
from byteps_thc.torch.settings import Compression, GradientCompression, ThcCompression


class _DistributedMethods:
    """Mixed into the class of the wrapped optimizer, before it, so that isinstance(_, torch.optim.SGD) stays true."""

    _hooks: "GradientHooks"
    _reducer: PlainReducer | CompressedReducer | None
    _synchronizes: bool
    #: all processes, for ParameterSynchronizer and synchronize_parameters
    replicas: Replicas

    def synchronize(self) -> None:
        """Wait until all gradients are averages over the workers; to clip or unscale them before step().

        Raises the network's errors (DeadlineError, TransportError, RestartError), and the optimizer is then closed.
        """
        self._hooks.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Keep step() from synchronizing, whatever happened since synchronize()."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make the optimizer's step with averaged gradients, including gradients that closure computes.

        Skips averaging if synchronize() has run after the last backward().
        """
        if closure is not None:
            loss = super().step(self._synchronized(closure))  # type: ignore[misc]
        else:
            if self._synchronizes:
                self.synchronize()
            loss = super().step()  # type: ignore[misc]
        self._hooks.step_taken()
        return loss

    # The optimizer's own step() runs the step hooks; torch would wrap this one again after load_state_dict().
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. Raises InputError between backward() and synchronize()."""
        if self._hooks.in_flight:
            raise InputError("zero_grad() would change gradients in flight: call it after step() or synchronize()")
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:  # noqa: ARG002  the interface
        """Raise ConfigurationError: its gradients would not be averaged. Add groups before wrapping."""
        raise ConfigurationError("add the parameter group to the optimizer before DistributedOptimizer wraps it")

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are accumulated before they travel."""
        return self._hooks.backward_passes_per_step

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change backward_passes_per_step, between steps."""
        self._hooks.set_backward_passes_per_step(passes)

    def compression_state_dict(self) -> dict[str, Any]:
        """Return this worker's compression state for a checkpoint: residuals by parameter name, and rounds.

        Each worker saves its own state. state_dict() is the wrapped optimizer's.
        """
        return {} if self._reducer is None else self._reducer.state_dict()

    def load_compression_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a compression_state_dict() of the same worker.

        Raises ConfigurationError if the state does not fit.
        """
        if self._reducer is not None:
            self._reducer.load_state_dict(state)

    def compression_stats(self) -> CompressionStats:
        """Return statistics of this worker; all zero with one worker."""
        return CompressionStats() if self._reducer is None else self._reducer.statistics()

    def close_compression(self) -> None:
        """Leave the network, before shutdown() or suspend(). Gradients are no longer averaged.

        Another optimizer may then use the names of the parameters.
        """
        self._hooks.close()

    def _synchronized(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def compute() -> Any:
            with torch.enable_grad():
                loss = closure()
            self.synchronize()
            return loss

        return compute


def DistributedOptimizer(  # noqa: N802  BytePS's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: GradientCompression | ThcCompression = Compression.none,
    backward_passes_per_step: int = 1,
) -> Any:
    """Return the optimizer with gradients averaged over all workers while backward() is still running.

    optimizer: any torch optimizer. Use the result in its place, and make schedulers with it.
    named_parameters: model.named_parameters(), in the order of the forward pass. Names must be unique among all open
        optimizers of the process, and the same on all workers.
    compression: Compression.none (default), Compression.fp16 or Compression.thc(...).
    backward_passes_per_step: backward passes that accumulate before a push, default 1.

    The result is an instance of the optimizer's class, with its state and parameter groups, and the methods
    synchronize, skip_synchronize, set_backward_passes_per_step, compression_stats, compression_state_dict,
    load_compression_state_dict and close_compression. Call init() before. All processes make the same optimizers in the
    same order, and compare names and sizes.

    Raises ConfigurationError (a ValueError) for invalid names and settings, DeadlineError if another process makes no
    optimizer, and for THC the errors of Session.
    """
    if int(os.environ.get("BYTEPS_ENABLE_ASYNC", "0")):
        raise ConfigurationError("asynchronous training (BYTEPS_ENABLE_ASYNC) has no averages: use byteps.torch for it")
    check_passes(backward_passes_per_step)
    parameters = name_parameters(optimizer, named_parameters)
    reducer, claim, replicas = None, Claim(), BytepsReplicas()
    if process.size() > 1:
        compression, claim = take_place(parameters, compression)
        try:
            reducer = _make_reducer(parameters, compression, replicas)
        except BaseException:
            claim.release()
            raise
    wrapped_class: Any = type(type(optimizer).__name__, (_DistributedMethods, type(optimizer)), {})
    wrapped = wrapped_class.__new__(wrapped_class)
    # An earlier scheduler has put a step() of the plain optimizer there, which would skip the averages.
    wrapped.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    wrapped._reducer = reducer
    wrapped._hooks = GradientHooks(parameters, reducer, claim, backward_passes_per_step)
    wrapped._synchronizes = True
    wrapped.replicas = replicas
    return wrapped


def _make_reducer(
    parameters: list[NamedParameter], compression: GradientCompression | ThcCompression, replicas: Replicas
) -> PlainReducer | CompressedReducer:
    if not isinstance(compression, ThcCompression):
        return PlainReducer(parameters, compression)
    if process.workers() > 1 and any(p.tensor.dtype in DTYPES for p in parameters):
        return CompressedReducer(parameters, compression, replicas)
    return PlainReducer(parameters, Compression.none)  # nothing leaves this host, or nothing could be compressed


def check_passes(backward_passes_per_step: int) -> None:
    """Raise ConfigurationError unless it is positive."""
    if backward_passes_per_step < 1:
        raise ConfigurationError(f"backward_passes_per_step must be at least 1, not {backward_passes_per_step}")


class GradientHooks:
    """Pushes each parameter's gradient in a step's last backward pass. close() releases `claim`."""

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
        # Engines have their own end at exit.
        self._ending = Ending(self, partial(_end, handles, reducer, claim), at_exit=False)
        self.set_backward_passes_per_step(backward_passes_per_step)

    @property
    def in_flight(self) -> bool:
        """Whether a gradient was pushed since the last synchronize()."""
        return bool(self._pushed)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Push gradients in the `passes`-th backward pass after a synchronize()."""
        check_passes(passes)
        self.backward_passes_per_step = passes
        self._passes_left = {p.name: passes for p in self._parameters}

    def synchronize(self) -> None:
        """Wait until all gradients are averages. Push incomplete ones as they are, and missing ones as zeros."""
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
        """Note that the optimizer has used the averages: the next step needs new ones."""
        self._averaged = False

    def close(self) -> None:
        """Leave the network, remove the hooks and release the claim."""
        self._ending.close()

    def _hook_of(self, parameter: NamedParameter) -> Callable[[Tensor], None]:
        this = weakref.ref(self)  # the parameters may outlive it

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
            raise InputError(
                f"the gradient of {parameter.name!r} is sparse, and BytePS averages dense gradients: use "
                "Embedding(sparse=False)"
            )
        with self._push_lock:
            self._pushed.add(parameter.name)
            self._reducer.push(parameter)


def _end(handles: Sequence[Any], reducer: PlainReducer | CompressedReducer | None, claim: Claim) -> None:
    for handle in handles:
        handle.remove()
    if reducer is not None:
        reducer.close()
    claim.release()
