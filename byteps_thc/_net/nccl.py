"""NCCL: collectives on device memory only."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from byteps_thc._base.torch_private import AllgatherOptions, AllToAllOptions, PrefixStore
from byteps_thc._net.communicator import Backend, Communicator, Waitable, reduction, translate
from byteps_thc._net.ending import close_at_exit, within

_POLL_S = 1e-3
_END_S = 10.0  # for collectives under way at the end; with a dead rank they never finish

_logger = logging.getLogger("byteps_thc")
_Options = TypeVar("_Options")


class DeviceCommunicator(Communicator):
    """A communicator of tensors on this rank's GPU.

    A collective starts behind the current stream's work; wait() makes the current stream wait, not the thread. With a
    dead rank NCCL's watchdog ends the process after the timeout (TORCH_NCCL_ASYNC_ERROR_HANDLING).
    """

    def __init__(self, store: PrefixStore, rank: int, size: int, timeout: timedelta) -> None:
        self._group: Backend = _open(store, rank, size, timeout)
        self._max = _on_current_stream(reduction(dist.ReduceOp.MAX))
        self._sum = _on_current_stream(reduction(dist.ReduceOp.SUM))
        self._to_all, self._gather = _on_current_stream(AllToAllOptions()), _on_current_stream(AllgatherOptions())
        self._last: Backend = None
        self._aborting: threading.Thread | None = None
        close_at_exit(self.close)

    def close(self) -> None:
        """End the communicator after its collectives, which a slower rank needs, at most 10 s; may be called again."""
        group, self._group = self._group, None
        last, self._last = self._last, None
        if group is not None:
            end_group(group, last, _END_S)
        if self._aborting is not None:
            self._aborting.join(_END_S)

    def abort(self) -> None:
        """End the communicator and its collectives, from any thread: another rank never starts them."""
        group, self._group = self._group, None
        if group is not None:
            # NCCL then waits for kernels of other communicators, which must be aborted meanwhile.
            self._aborting = threading.Thread(target=group.abort, name="thc-abort-nccl", daemon=True)
            self._aborting.start()

    @override
    def max_(self, tensor: Tensor) -> Waitable:
        return self._start(tensor, lambda: self._group.allreduce([tensor], self._max))

    @override
    def sum_(self, tensor: Tensor) -> Waitable:
        return self._start(tensor, lambda: self._group.allreduce([tensor], self._sum))

    @override
    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        return self._start(source, lambda: self._group.alltoall_base(output, source, [], [], self._to_all))

    @override
    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        return self._start(source, lambda: self._group._allgather_base(output, source, self._gather))

    @override
    def broadcast(self, tensor: Tensor) -> Waitable:
        return self._start(tensor, lambda: self._group.broadcast([tensor], dist.BroadcastOptions()))

    def _start(self, tensor: Tensor, collective: Callable[[], Waitable | None]) -> Waitable:
        try:
            work = collective()
        except RuntimeError as error:
            raise translate(error) from error
        if work is None:  # it is on the current stream
            work = _InOrder(torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None)
        self._last = work
        return work


def _open(store: PrefixStore, rank: int, size: int, timeout: timedelta) -> Backend:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


def _on_current_stream(options: _Options) -> _Options:
    setattr(options, "asyncOp", False)  # noqa: B010
    return options


class _InOrder(Waitable):
    """A collective on a stream (None: on the CPU), behind which all later work there waits for it."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._stream = stream

    @override
    def wait(self) -> None:
        pass

    def is_completed(self) -> bool:
        """Whether it is over, with the work behind it."""
        return self._stream is None or self._stream.query()


def end_group(group: Backend, last: Backend, wait_s: float) -> None:
    """Shut a process group's back end down after its `last` work, if any; abort it if that takes longer than wait_s."""
    try:
        if not _over(last, wait_s):
            raise RuntimeError(f"its collectives were not over within {wait_s:g} s")
        _shut_down(group, wait_s)
    except RuntimeError as error:
        _logger.warning("NCCL's communicator is aborted: %s", error)
        group.abort()


def _over(work: Backend, wait_s: float) -> bool:
    deadline_s = time.monotonic() + wait_s
    while work is not None and not work.is_completed():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def _shut_down(group: Backend, wait_s: float) -> None:
    """Shut down; RuntimeError if that fails, or takes longer than wait_s."""
    # Nothing in torch or NCCL ends the wait for a dead rank. At Python's end, no rank is left to wait for.
    outcome = within(wait_s, group.shutdown, "thc-end-nccl", or_here=True)
    if outcome is None:
        raise RuntimeError(f"it was not shut down within {wait_s:g} s")
    outcome.result()
