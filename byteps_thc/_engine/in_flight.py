"""The gradients of an engine by key, with their futures and layouts."""

import copy
import threading
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.futures import Future

from byteps_thc._base.errors import ConfigurationError, InputError, TransportError
from byteps_thc._base.torch_private import raise_when_waited
from byteps_thc._engine.engine import GradientBuffer


def require_not_captured(*gradients: Tensor) -> None:
    """Raise ConfigurationError while the caller records the current stream as a CUDA graph.

    Replays would repeat the signs and rounding of the recorded round, with residuals of old gradients.
    """
    if any(gradient.is_cuda for gradient in gradients) and torch.cuda.is_current_stream_capturing():
        raise ConfigurationError(
            "gradients are averaged while a CUDA graph is recorded (torch.cuda.graph, make_graphed_callables, "
            'torch.compile(mode="reduce-overhead")): replayed, it would compress every step with the random bits of '
            "the recorded one. Record the forward pass without backward, or compile with another mode"
        )


class InFlight:
    """The futures of the gradients in flight, by key. Thread-safe.

    changed: called with +1 for every new one, and -1 for every finished one. The first error goes to all waiters, and
    to all later calls.
    """

    def __init__(self, changed: Callable[[int], None] = lambda _: None) -> None:
        self._changed = changed
        self._lock = threading.Lock()  # guards the next two
        self._futures: dict[str, Future[Tensor]] = {}
        self._error: Exception | None = None

    def begin(self, key: str, future: Future[Tensor]) -> None:
        """Add a gradient. Raises InputError if its key is in flight, TransportError if the engine has ended."""
        with self._lock:
            self._require_free(key)
            self._futures[key] = future
        self._changed(+1)

    def require_free(self, key: str) -> None:
        with self._lock:
            self._require_free(key)

    def finish(self, key: str, future: Future[Tensor], gradient: Tensor) -> None:
        """Complete the future with the averaged gradient, unless it has an error already."""
        with self._lock:
            done = self._futures.pop(key, None)
        if done is future:
            self._changed(-1)
            future.set_result(gradient)

    def fail(self, error: Exception) -> None:
        """End all gradients in flight, and all later calls."""
        with self._lock:
            self._error = self._error or error
            futures, self._futures = self._futures, {}
        for future in futures.values():
            self._changed(-1)
            set_error(future, error)

    def keys(self) -> set[str]:
        with self._lock:
            return set(self._futures)

    def require_idle(self, call: str) -> None:
        if count := len(self.keys()):
            raise InputError(f"{call} while {count} buffers are in flight: call it between steps")

    def _require_free(self, key: str) -> None:
        if self._error is not None:
            raise TransportError(f"the engine has ended: {self._error}") from self._error
        if key in self._futures:
            raise InputError(f"buffer {key!r} is in flight: wait for its future first")


def set_error(future: Future[Any], error: Exception) -> None:
    """As future.set_exception(), but every wait raises a copy of the error.

    A raised exception collects the frames of its callers, with all their variables. The garbage collector does not see
    through a future, which would keep the callers' models for good.
    """
    raise_when_waited(future, _raise_copy)
    future.set_result(error)


def _raise_copy(error: Exception) -> NoReturn:
    try:
        other = copy.copy(error)
    except Exception:  # its constructor takes other arguments
        raise error from error.__cause__
    raise other.with_traceback(error.__traceback__) from error.__cause__


LayoutT = TypeVar("LayoutT")


class Layouts(Generic[LayoutT]):
    """An engine's layouts, by key. moving: called before parameters move to a new layout."""

    def __init__(self, in_flight: InFlight, moving: Callable[[], None] = lambda: None) -> None:
        self._in_flight, self._moving = in_flight, moving
        self._known: dict[str, tuple[object, LayoutT, frozenset[str]]] = {}

    def known(self, key: str, kind: object) -> LayoutT | None:
        known = self._known.get(key)
        return known[1] if known is not None and known[0] == kind else None

    def make_room(self, key: str, names: frozenset[str]) -> None:
        """Forget earlier layouts of the parameters, as after DDP rebuilt buckets: a parameter lies in one gradient.

        Call it before the new layout gets its residual. Raises InputError if the parameters are in flight elsewhere.
        """
        stale = {other for other, (_, _, theirs) in self._known.items() if other == key or theirs & names}
        if stale & self._in_flight.keys():
            raise InputError(f"buffer {key!r} has parameters of buffers in flight")
        if stale:
            self._moving()
        for other in stale:
            del self._known[other]

    def add(self, layout: LayoutT, key: str, names: frozenset[str], kind: object) -> None:
        self._known[key] = kind, layout, names

    def clear(self) -> None:
        """Forget all layouts: the residuals were replaced."""
        self._known.clear()


def kind_of(buffer: GradientBuffer) -> object:
    gradient = buffer.gradient
    return gradient.numel(), gradient.dtype, gradient.device, buffer.parameters
