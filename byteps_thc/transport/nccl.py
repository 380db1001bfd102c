"""NCCL, which moves device memory only."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from typing_extensions import override

from byteps_thc.transport.at_exit import close_at_exit
from byteps_thc.transport.communicator import Communicator, Waitable, from_rank_zero, reduction, translate

_END_S = 10.0  # for collectives that are under way at the end; with a dead rank they never are over

_logger = logging.getLogger("byteps_thc")


class DeviceCommunicator(Communicator):
    """A communicator of tensors on this rank's GPU.

    A collective begins behind what is on the current stream; to wait for it makes the current stream wait, not the
    thread. With a dead rank NCCL's own watchdog ends the process after the timeout (TORCH_NCCL_ASYNC_ERROR_HANDLING).
    """

    def __init__(self, store: PrefixStore, rank: int, size: int, timeout: timedelta) -> None:
        self._group: Any = _open(store, rank, size, timeout)
        self._max, self._sum = reduction(dist.ReduceOp.MAX), reduction(dist.ReduceOp.SUM)
        close_at_exit(self)

    def close(self) -> None:
        """End the communicator once its collectives are over, ten seconds at most; may be called again.

        Nobody else does it in order: when torch destroys the group it is aborted, which takes kernels away that a
        slower rank may still need.
        """
        group, self._group = self._group, None
        if group is not None:
            end_group(group, _END_S)

    @override
    def max_(self, tensor: Tensor) -> Waitable:
        return _start(lambda: self._group.allreduce([tensor], self._max))

    @override
    def sum_(self, tensor: Tensor) -> Waitable:
        return _start(lambda: self._group.allreduce([tensor], self._sum))

    @override
    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        return _start(lambda: self._group.alltoall_base(output, source, [], []))

    @override
    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        return _start(lambda: self._group._allgather_base(output, source))

    @override
    def broadcast(self, tensor: Tensor) -> Waitable:
        return _start(lambda: self._group.broadcast([tensor], from_rank_zero()))


def _open(store: PrefixStore, rank: int, size: int, timeout: timedelta) -> Any:
    options: Any = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


def end_group(group: Any, wait_s: float) -> None:
    """Shut a process group's back end down; abort it when that takes longer than wait_s, or fails."""
    errors: list[RuntimeError] = []
    end = group.shutdown if hasattr(group, "shutdown") else group._shutdown  # torch 2.6 has NCCL's as the second

    def shut_down() -> None:
        try:
            end()
        except RuntimeError as error:
            errors.append(error)

    # A thread, because nothing of torch's or NCCL's ends the wait for a rank that is dead.
    ending = threading.Thread(target=shut_down, name="thc-end-nccl", daemon=True)
    ending.start()
    ending.join(wait_s)
    if errors or ending.is_alive():
        reason = errors[0] if errors else f"its collectives were not over within {wait_s:g} s"
        _logger.warning("NCCL's communicator is aborted: %s", reason)
        group.abort()


def _start(collective: Callable[[], Waitable]) -> Waitable:
    try:
        return collective()
    except RuntimeError as error:
        raise translate(error) from error
