"""Buffers on their way through an engine: who waits for which, and how it all ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from torch import Tensor
from torch.futures import Future

from byteps_thc.errors import InputError, TransportError


class Awaited(Protocol):
    """A job: its future gives its gradient."""

    @property
    def gradient(self) -> Tensor:
        """What is averaged, in place."""

    @property
    def future(self) -> Future[Tensor]:
        """Who waits has this."""


JobT = TypeVar("JobT", bound=Awaited)


class InFlight(Generic[JobT]):
    """The jobs in flight, by key of their buffers. Thread-safe.

    changed: told of every job that comes (+1) or goes (-1). The first error is given to all who wait, and to all who
    come later.
    """

    def __init__(self, changed: Callable[[int], None] = lambda _: None) -> None:
        self._changed = changed
        self._lock = threading.Lock()  # guards the next two
        self._jobs: dict[str, JobT] = {}
        self._error: Exception | None = None

    def begin(self, key: str, job: JobT) -> None:
        """Let a job in. InputError when one of that key is in flight, TransportError when the engine has ended."""
        with self._lock:
            self._require_free(key)
            self._jobs[key] = job
        self._changed(+1)

    def require_free(self, key: str) -> None:
        """Raise what begin() would raise for that key."""
        with self._lock:
            self._require_free(key)

    def finish(self, key: str, job: JobT) -> None:
        """Hand the job's gradient to who waits for it, unless they have an error already."""
        with self._lock:
            done = self._jobs.pop(key, None)
        if done is job:
            self._changed(-1)
            job.future.set_result(job.gradient)

    def fail(self, error: Exception) -> None:
        """End all that is in flight, and all later calls."""
        with self._lock:
            self._error = self._error or error
            jobs = list(self._jobs.values())
            self._jobs.clear()
        for job in jobs:
            self._changed(-1)
            job.future.set_exception(error)  # type: ignore[arg-type]  # torch's annotation is wrong

    def keys(self) -> set[str]:
        """Return the keys of the jobs in flight."""
        with self._lock:
            return set(self._jobs)

    def require_idle(self, call: str) -> None:
        """Raise InputError when there are jobs in flight."""
        if count := len(self.keys()):
            raise InputError(f"{call} between steps only: {count} buffers are in flight")

    def _require_free(self, key: str) -> None:
        if self._error is not None:
            raise TransportError(f"the engine has ended: {self._error}") from self._error
        if key in self._jobs:
            raise InputError(f"buffer {key!r} is in flight: wait for its future first")
