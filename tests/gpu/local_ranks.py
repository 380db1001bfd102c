"""Ranks that are threads of one process and share one device: NCCL takes one rank a GPU.

A collective runs on a stream of its own behind the current stream, as NCCL's; wait() makes the current stream wait; it
reads its peers' memory only once their streams have arrived. A forgotten wait is wrong bits, most of all with pauses.
CPU tensors have no streams, only threads and their order.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from byteps_thc._net.communicator import Communicator, Waitable

_SLEEP_CYCLES = 400_000  # of a GPU, a fifth of a millisecond
_SLEEP_S = 5e-4

T = TypeVar("T")


class Pause:
    """Keeps the current stream, or the thread of a CPU, for a random time. seed: of the times."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self._on_gpu, self._random = device.type == "cuda", random.Random(seed)

    def __call__(self) -> None:
        share = self._random.random() ** 4  # mostly short ones
        if self._on_gpu:
            torch.cuda._sleep(int(share * _SLEEP_CYCLES))
        else:
            time.sleep(share * _SLEEP_S)


class LocalRanks:
    """A group of threads that show each other things. deadline_s: of the wait for the slowest one."""

    def __init__(self, size: int, deadline_s: float = 60.0) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=deadline_s)
        self._shown: list[Any] = [None] * size

    def exchange(self, rank: int, mine: T) -> list[T]:
        """Return all ranks' arguments. threading.BrokenBarrierError when one does not come, or abort() was called."""
        self._shown[rank] = mine
        self._barrier.wait()
        everyone = list(self._shown)
        self._barrier.wait()  # nobody shows the next thing before all have seen the last
        return everyone

    def abort(self) -> None:
        """End all waits, now and later: a rank has failed."""
        self._barrier.abort()


@dataclass(frozen=True)
class _Work(Waitable):
    done: torch.cuda.Event | None

    def wait(self) -> None:
        _wait_for(self.done)


class LocalCommunicator(Communicator):
    """One rank's, used by its thread. device: of the tensors. pause: called wherever a stream could be late."""

    def __init__(self, ranks: LocalRanks, rank: int, device: torch.device, pause: Callable[[], None]) -> None:
        self._ranks, self._rank, self._pause = ranks, rank, pause
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def max_(self, tensor: Tensor) -> Waitable:
        return self._collective(tensor, tensor, lambda everyone: torch.stack(everyone).amax(0))

    def sum_(self, tensor: Tensor) -> Waitable:
        return self._collective(tensor, tensor, _sum)

    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        def own_parts(everyone: list[Tensor]) -> Tensor:
            return torch.stack([theirs.view(self._ranks.size, -1)[self._rank] for theirs in everyone])

        return self._collective(output, source, own_parts)

    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        return self._collective(output, source, torch.stack)

    def broadcast(self, tensor: Tensor) -> Waitable:
        return self._collective(tensor, tensor, lambda everyone: everyone[0].clone())

    def close(self) -> None:
        """Nothing is to be ended."""

    def _collective(self, output: Tensor, source: Tensor, read: Callable[[list[Tensor]], Tensor]) -> Waitable:
        with self._behind_current(output, source):
            self._pause()
            for _, ready in (sent := self._ranks.exchange(self._rank, (source, self._event()))):
                _wait_for(ready)
            result = read([theirs for theirs, _ in sent])
            self._pause()
            # No rank overwrites its message before all have read it.
            for has_read in self._ranks.exchange(self._rank, self._event()):
                _wait_for(has_read)
            output.view(-1).copy_(result.view(-1))
            return _Work(self._event())

    @contextmanager
    def _behind_current(self, *used: Tensor) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        for tensor in used:
            tensor.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            yield

    def _event(self) -> torch.cuda.Event | None:
        if self._stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event


def on_ranks(groups: list[LocalRanks], size: int, work: Callable[[int], T]) -> list[T]:
    """Do the work of all ranks, each in a thread and on a stream of its own; return their results.

    groups: all that they use, which end when one rank fails. Raises the error of that rank.
    """
    first: list[BaseException] = []

    def run(rank: int) -> T:
        try:
            if not torch.cuda.is_available():
                return work(rank)
            with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                return work(rank)
        except BaseException as error:
            first.append(error)
            for group in groups:
                group.abort()
            raise

    with ThreadPoolExecutor(size, thread_name_prefix="rank") as threads:
        futures = [threads.submit(run, rank) for rank in range(size)]
    if first:
        raise first[0]  # the others' is that the barrier is broken
    return [future.result() for future in futures]


def _sum(everyone: list[Tensor]) -> Tensor:
    """In the order of the ranks, the same bits on all ranks."""
    total = everyone[0].clone()
    for theirs in everyone[1:]:
        total += theirs
    return total


def _wait_for(event: torch.cuda.Event | None) -> None:
    if event is not None:
        torch.cuda.current_stream().wait_event(event)
