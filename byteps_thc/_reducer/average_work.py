"""What an asynchronous average is waited for with."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import Tensor
from torch.futures import Future

from byteps_thc._engine.in_flight import set_error
from byteps_thc._scheme.errors import DeadlineError

_NO_TIMEOUT = timedelta(0)  # as torch has it


class AverageWork:
    """An average under way; has what torch.distributed.Work is used for."""

    def __init__(self, tensors: Sequence[Tensor], cuda_devices: Sequence[torch.device]) -> None:
        self._tensors = list(tensors)
        self._future: Future[list[Tensor]] = Future(devices=list(cuda_devices) or None)
        self._over = threading.Event()
        self._error: Exception | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the tensors hold the average; then return True. May be called again.

        timeout: None or zero: as long as CompressionPolicy.deadline_s lets the engine wait. Raises DeadlineError when
        it is over, and the average is still under way then. Raises why the average failed: InputError when ranks
        average different tensors, DeadlineError or TransportError when another rank is late or gone.
        """
        seconds = None if timeout is None or timeout == _NO_TIMEOUT else timeout.total_seconds()
        if not self._over.wait(seconds):
            raise DeadlineError(f"the average did not arrive within {seconds} s; it is still under way")
        self._future.wait()  # the current CUDA streams wait for the copies, too
        return True

    def is_completed(self) -> bool:
        """Whether wait() would return, or raise, at once."""
        return self._over.is_set()

    def is_success(self) -> bool:
        """Whether the tensors hold the average."""
        return self._over.is_set() and self._error is None

    def exception(self) -> Exception | None:
        """Return why the average failed, None if it did not or has not yet."""
        return self._error

    def result(self) -> list[Tensor]:
        """Return the tensors, in the order they were given."""
        return self._tensors

    def get_future(self) -> Future[list[Tensor]]:
        """Return a future of result(). Its callbacks are run by a thread of the reducer: they must not wait."""
        return self._future

    def finish(self, error: Exception | None) -> None:
        """End it; by the reducer, once."""
        self._error = error
        self._over.set()
        if error is None:
            self._future.set_result(self._tensors)
        else:
            set_error(self._future, error)
