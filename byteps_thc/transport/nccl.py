"""NCCL, which moves device memory only."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, AllToAllOptions, PrefixStore
from typing_extensions import override

from byteps_thc.errors import DeadlineError
from byteps_thc.transport.communicator import (
    Communicator,
    Waitable,
    from_rank_zero,
    on_current_stream,
    reduction,
    translate,
)

_POLL_S = 50e-6


class DeviceCommunicator(Communicator):
    """A communicator of tensors on this rank's GPU.

    A collective begins behind what is on the current stream; to wait for it makes the current stream wait, not the
    thread. With a dead rank NCCL's own watchdog ends the process after the timeout (TORCH_NCCL_ASYNC_ERROR_HANDLING).
    """

    def __init__(self, store: PrefixStore, rank: int, size: int, timeout: timedelta) -> None:
        self._group = _open(store, rank, size, timeout)
        self._max, self._sum = (
            on_current_stream(reduction(operation)) for operation in (dist.ReduceOp.MAX, dist.ReduceOp.SUM)
        )
        self._to_all, self._gather = on_current_stream(AllToAllOptions()), on_current_stream(AllgatherOptions())

    @override
    def max_(self, tensor: Tensor) -> Waitable:
        return _start(lambda: self._group.allreduce([tensor], self._max))

    @override
    def sum_(self, tensor: Tensor) -> Waitable:
        return _start(lambda: self._group.allreduce([tensor], self._sum))

    @override
    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        return _start(lambda: self._group.alltoall_base(output, source, [], [], self._to_all))

    @override
    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        return _start(lambda: self._group._allgather_base(output, source, self._gather))

    @override
    def broadcast(self, tensor: Tensor) -> Waitable:
        return _start(lambda: self._group.broadcast([tensor], from_rank_zero()))


def _open(store: PrefixStore, rank: int, size: int, timeout: timedelta) -> Any:
    options: Any = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    options.is_high_priority_stream = True  # where torch has no collectives on the current stream
    return dist.ProcessGroupNCCL(store, rank, size, options)


class _InOrder(Waitable):
    """A collective on the current stream: what is behind it there waits for it."""

    @override
    def wait(self) -> None:
        pass


_IN_ORDER = _InOrder()


def _start(collective: Callable[[], Waitable | None]) -> Waitable:
    try:
        return collective() or _IN_ORDER
    except RuntimeError as error:
        raise translate(error) from error


class NcclCommunicator(Communicator):
    """A communicator of host tensors, which are copied to the current GPU and back on a stream of its own.

    Written to NCCL's interface and run with one rank only (an H100). With a dead rank, NCCL's own watchdog may end
    the process before the deadline's error is raised (TORCH_NCCL_ASYNC_ERROR_HANDLING).
    """

    def __init__(self, store: PrefixStore, rank: int, size: int, timeout: timedelta) -> None:
        self._group = _open(store, rank, size, timeout)
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.Stream(self._device)
        self._timeout_s = timeout.total_seconds()

    @override
    def max_(self, tensor: Tensor) -> Waitable:
        return self._reduce(tensor, dist.ReduceOp.MAX)

    @override
    def sum_(self, tensor: Tensor) -> Waitable:
        return self._reduce(tensor, dist.ReduceOp.SUM)

    @override
    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        return self._run(output, source, lambda out, mine: self._group.alltoall_base(out, mine, [], []))

    @override
    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        return self._run(output, source, lambda out, mine: self._group._allgather_base(out, mine))

    @override
    def broadcast(self, tensor: Tensor) -> Waitable:
        def collective(out: Tensor, mine: Tensor) -> Any:
            out.copy_(mine)
            return self._group.broadcast([out], from_rank_zero())

        return self._run(tensor, tensor, collective)

    def _reduce(self, tensor: Tensor, operation: Any) -> Waitable:
        def collective(out: Tensor, mine: Tensor) -> Any:
            out.copy_(mine)
            return self._group.allreduce([out], reduction(operation))

        return self._run(tensor, tensor, collective)

    def _run(self, output: Tensor, source: Tensor, collective: Callable[[Tensor, Tensor], Any]) -> Waitable:
        try:
            with self._stream:
                mine = source.to(self._device)
                out = torch.empty_like(output, device=self._device)
                collective(out, mine).wait()  # the stream waits, this thread does not
                # Pinned: a copy to other memory would wait here for the peers.
                pinned = torch.empty_like(output, pin_memory=True).copy_(out, non_blocking=True)
                return _NcclWork(self._stream.record_event(), pinned, output, self._timeout_s)
        except RuntimeError as error:
            raise translate(error) from error


class _NcclWork(Waitable):
    def __init__(self, done: Any, pinned: Tensor, output: Tensor, timeout_s: float) -> None:
        self._done, self._pinned, self._output = done, pinned, output
        self._deadline = time.monotonic() + timeout_s

    @override
    def wait(self) -> None:
        while not self._done.query():
            if time.monotonic() > self._deadline:
                raise DeadlineError("other ranks did not answer within CompressionPolicy.deadline_s")
            time.sleep(_POLL_S)
        self._output.copy_(self._pinned)
