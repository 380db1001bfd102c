"""DistributedOptimizer: a torch optimizer whose gradients are averaged over the workers before each step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from byteps_thc._engine.drift_warning import DriftWarning
from byteps_thc._engine.dtypes import DTYPES
from byteps_thc._engine.statistics import CompressionStats
from byteps_thc._net.byteps import process
from byteps_thc._net.byteps.claims import Claim
from byteps_thc._net.replicas import Replicas
from byteps_thc._scheme.errors import ConfigurationError, InputError
from byteps_thc.torch.broadcast import BytepsReplicas
from byteps_thc.torch.compression import Compression, GradientCompression
from byteps_thc.torch.optimizer.gradient_hooks import GradientHooks, check_passes
from byteps_thc.torch.optimizer.place import take_place
from byteps_thc.torch.parameters import NamedParameter, name_parameters
from byteps_thc.torch.reducers.compressed_reducer import CompressedReducer
from byteps_thc.torch.reducers.plain_reducer import PlainReducer
from byteps_thc.torch.settings import ThcCompression


class _DistributedMethods:
    """Mixed into the class of the wrapped optimizer, before it, so that isinstance(_, torch.optim.SGD) stays true."""

    _hooks: GradientHooks
    _reducer: PlainReducer | CompressedReducer | None
    _synchronizes: bool
    _drift_warning: DriftWarning
    #: all processes, for ParameterSynchronizer and synchronize_parameters
    replicas: Replicas

    def synchronize(self) -> None:
        """Wait until all gradients are averages over the workers; to clip or unscale them before step().

        Raises the network's errors (DeadlineError, TransportError, RestartError): the optimizer is over then.
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
        """Average the gradients, unless synchronize() has since the last backward(), and take the optimizer's step.

        Gradients that closure computes are averaged, too.
        """
        if closure is not None:
            loss = super().step(self._synchronized(closure))  # type: ignore[misc]
        else:
            if self._synchronizes:
                self.synchronize()
            loss = super().step()  # type: ignore[misc]
        self._hooks.step_taken()
        self._drift_warning.step_began()
        return loss

    # The optimizer's own step() runs the step hooks; torch would wrap this one again after load_state_dict().
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. InputError between backward() and synchronize(), while they are being averaged."""
        if self._hooks.in_flight:
            raise InputError(
                "zero_grad() between backward() and step() or synchronize() would change gradients in flight"
            )
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:  # noqa: ARG002  the interface
        """ConfigurationError: the new gradients would not be averaged. Add groups before wrapping."""
        raise ConfigurationError("add the parameter group to the optimizer before DistributedOptimizer wraps it")

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are accumulated before they travel."""
        return self._hooks.backward_passes_per_step

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change backward_passes_per_step, between steps."""
        self._hooks.set_backward_passes_per_step(passes)

    def compression_state_dict(self) -> dict[str, Any]:
        """Return what THC keeps on this worker (residuals by parameter name, rounds), for its checkpoint.

        Each worker saves its own. state_dict() stays that of the wrapped optimizer.
        """
        return {} if self._reducer is None else self._reducer.state_dict()

    def load_compression_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a compression_state_dict() of the same worker; ConfigurationError when it does not fit."""
        if self._reducer is not None:
            self._reducer.load_state_dict(state)

    def compression_stats(self) -> CompressionStats:
        """Return what compression did and what it cost; all zero with one worker."""
        return CompressionStats() if self._reducer is None else self._reducer.statistics()

    def close_compression(self) -> None:
        """Leave the network, before shutdown() or suspend(). Gradients are not averaged any more.

        Another optimizer may have the parameters' names then.
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
    """Return the optimizer with gradients averaged over all workers, while backward() is still running.

    The result is an instance of the optimizer's own class, with its state and parameter groups, and the methods
    synchronize, skip_synchronize, set_backward_passes_per_step, compression_stats, compression_state_dict,
    load_compression_state_dict and close_compression. Use it in place of the optimizer, and make schedulers with it.

    named_parameters: model.named_parameters(), in the order of the forward pass; names must be unique among all open
    optimizers of the process, and the same on all workers. compression: Compression.none, fp16, or thc(...).
    Call init() before. All processes must make the same optimizers in the same order: they compare names and sizes.
    Raises ConfigurationError (a ValueError) for names and settings, DeadlineError if another process makes no
    optimizer, and for THC what Session raises.
    """
    if int(os.environ.get("BYTEPS_ENABLE_ASYNC", "0")):
        raise ConfigurationError("asynchronous training (BYTEPS_ENABLE_ASYNC) has no averages: use byteps.torch for it")
    check_passes(backward_passes_per_step)
    parameters = name_parameters(optimizer, named_parameters)
    reducer, claim = None, Claim()
    if process.size() > 1:
        compression, claim = take_place(parameters, compression)
        try:
            reducer = _make_reducer(parameters, compression)
        except BaseException:
            claim.release()
            raise
    wrapped_class: Any = type(type(optimizer).__name__, (_DistributedMethods, type(optimizer)), {})
    wrapped = wrapped_class.__new__(wrapped_class)
    # A scheduler made before has put a step() of the plain optimizer there, which would skip the averages.
    wrapped.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    wrapped._reducer = reducer
    wrapped._hooks = GradientHooks(parameters, reducer, claim, backward_passes_per_step)
    wrapped._synchronizes = True
    wrapped.replicas = BytepsReplicas()
    network = None
    if isinstance(reducer, CompressedReducer) and isinstance(compression, ThcCompression):
        network = compression.network_of_lane(0) if compression.route == "network" else None
    wrapped._drift_warning = DriftWarning(network, process.workers(), wrapped.replicas)
    return wrapped


def _make_reducer(
    parameters: list[NamedParameter], compression: GradientCompression | ThcCompression
) -> PlainReducer | CompressedReducer:
    if not isinstance(compression, ThcCompression):
        return PlainReducer(parameters, compression)
    if process.workers() > 1 and any(p.tensor.dtype in DTYPES for p in parameters):
        return CompressedReducer(parameters, compression)
    return PlainReducer(parameters, Compression.none)  # nothing leaves this host, or nothing could be compressed
