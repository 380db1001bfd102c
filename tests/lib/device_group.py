"""NCCL without GPUs: a back end for DeviceCommunicator on CPU tensors, which are sent by way of its store.

    take_store_for_nccl()  # from now on, in this process

Ranks match collectives as NCCL does, by their order: a collective of another kind or size on one rank ends on none. A
thread is the stream: it runs collectives in order, and calls return at once. wait() returns when the stream gets there,
after abort() with tensors as they are. A collective over the time limit ends the process, as NCCL's watchdog does.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from byteps_thc._net import nccl

_POLL_S = 3e-3
#: Exit status of a process that the watchdog ends.
WATCHDOG = 70


@dataclass(frozen=True)
class DeviceWork:
    run: Future[None]

    def wait(self) -> None:
        self.run.result()

    def is_completed(self) -> bool:
        return self.run.done()


class DeviceGroup:
    """calls: the collectives of this rank, each a kind and a number of bytes. end: "", "shutdown" or "abort"."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self.calls, self.end = list[str](), ""
        self._store, self._rank, self._size, self._timeout_s = store, rank, size, timeout.total_seconds()
        self._aborted = threading.Event()
        self._stream = ThreadPoolExecutor(1, thread_name_prefix="stream")
        opened.append(self)

    def allreduce(self, tensors: list[Tensor], options: dist.AllreduceOptions) -> DeviceWork:
        reduce = torch.amax if options.reduceOp == dist.ReduceOp.MAX else torch.sum
        [tensor] = tensors
        return self._start("all-reduce", tensor, tensor, lambda everyone: reduce(everyone, 0))

    def alltoall_base(self, output: Tensor, source: Tensor, *_: Any) -> DeviceWork:
        return self._start("all-to-all", output, source, lambda everyone: everyone.chunk(self._size, 1)[self._rank])

    def _allgather_base(self, output: Tensor, source: Tensor, _: Any) -> DeviceWork:
        return self._start("all-gather", output, source, lambda everyone: everyone)

    def broadcast(self, tensors: list[Tensor], _: Any) -> DeviceWork:
        [tensor] = tensors
        return self._start("broadcast", tensor, tensor, lambda everyone: everyone[0])

    def shutdown(self) -> None:
        self._stream.shutdown()
        self.end = self.end or "shutdown"

    def abort(self) -> None:
        self.end = "abort"
        self._aborted.set()
        self._stream.shutdown()

    def _start(self, kind: str, output: Tensor, source: Tensor, combine: Callable[[Tensor], Tensor]) -> DeviceWork:
        key = f"{len(self.calls)} {kind} {source.nbytes}"
        self.calls.append(f"{kind} {source.nbytes}")
        # The current values: the next work of the caller's thread is behind the collective on a stream.
        self._store.set(f"{key} {self._rank}", source.view(-1).view(torch.uint8).numpy().tobytes())
        return DeviceWork(self._stream.submit(self._run, key, output, source.dtype, combine))

    def _run(self, key: str, output: Tensor, dtype: torch.dtype, combine: Callable[[Tensor], Tensor]) -> None:
        until_s, everyone = time.monotonic() + self._timeout_s, []
        for rank in range(self._size):
            while not self._store.check([f"{key} {rank}"]):
                if self._aborted.wait(_POLL_S):
                    return
                if time.monotonic() > until_s:
                    print(f"the watchdog ends rank {self._rank}: nothing from {rank} for {key}", file=sys.stderr)
                    os._exit(WATCHDOG)
            everyone.append(torch.frombuffer(bytearray(self._store.get(f"{key} {rank}")), dtype=dtype))
        output.view(-1).copy_(combine(torch.stack(everyone)).reshape(-1))


#: By this process, in their order.
opened: list[DeviceGroup] = []


def take_store_for_nccl() -> None:
    """From now on, device communicators of this process are for CPU tensors."""
    nccl._open = DeviceGroup
