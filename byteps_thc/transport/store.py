"""A process group's store as a communicator: for the few words that ranks compare before they have another one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store
from typing_extensions import override

from byteps_thc.errors import ConfigurationError, DeadlineError
from byteps_thc.transport.communicator import Communicator, Waitable, translate

#: What values in the store begin with.
_ANSWER, _REFUSAL = b"+", b"-"


class _Done(Waitable):
    @override
    def wait(self) -> None:
        pass


class StoreCommunicator(Communicator):
    """Host tensors by way of the store of a process group, without a connection or a GPU of its own.

    Every rank puts its tensor into the store; rank 0 takes them out, and puts all of them back as one value. So a
    collective is n reads of one rank and one of each other: for settings, not for gradients. Calls return when it
    is done. timeout_s: of each wait. DeadlineError that names a rank when it does not answer, TransportError when the
    store is gone, ConfigurationError when a rank refuses to answer.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float) -> None:
        self._store: Any = store  # whose stubs know no bytes
        self._rank, self._size = rank, size
        self._timeout, self._timeout_s = timedelta(seconds=timeout_s), timeout_s
        self._number = 0

    @override
    def max_(self, tensor: Tensor) -> Waitable:
        tensor.copy_(torch.stack(self._everyone(tensor)).amax(0))
        return _Done()

    @override
    def sum_(self, tensor: Tensor) -> Waitable:
        tensor.copy_(torch.stack(self._everyone(tensor)).sum(0, dtype=tensor.dtype))
        return _Done()

    @override
    def all_to_all(self, output: Tensor, source: Tensor) -> Waitable:
        parts = [theirs.view(self._size, -1)[self._rank] for theirs in self._everyone(source)]
        output.view(self._size, -1).copy_(torch.stack(parts))
        return _Done()

    @override
    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        output.view(-1).copy_(torch.cat([theirs.view(-1) for theirs in self._everyone(source)]))
        return _Done()

    @override
    def broadcast(self, tensor: Tensor) -> Waitable:
        tensor.copy_(self._everyone(tensor)[0])
        return _Done()

    def refuse(self, reason: str) -> None:
        """Take part in the next collective without a tensor: other ranks get ConfigurationError, which says why.

        Waits for nobody.
        """
        number, refusal = self._next(), _REFUSAL + reason.encode()
        try:
            self._store.set(f"{number}/{self._rank or 'all'}", refusal)
            if self._rank:
                self._count_taken(number)
        except RuntimeError as error:
            raise translate(error) from error

    def _next(self) -> int:
        number, self._number = self._number, self._number + 1
        return number

    def _everyone(self, mine: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, which have the same shape and type."""
        number = self._next()
        data = mine.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        try:
            joined = self._join(number, data) if self._rank == 0 else self._take(number, data)
        except RuntimeError as error:
            raise translate(error) from error
        if joined.startswith(_REFUSAL):
            raise ConfigurationError(joined.removeprefix(_REFUSAL).decode())
        joined, size = joined.removeprefix(_ANSWER), len(data)
        return [
            torch.frombuffer(bytearray(joined[rank * size : (rank + 1) * size]), dtype=mine.dtype).view(mine.shape)
            if size
            else mine
            for rank in range(self._size)
        ]

    def _take(self, number: int, data: bytes) -> bytes:
        self._store.set(f"{number}/{self._rank}", _ANSWER + data)
        joined = self._wait(f"{number}/all", "not all ranks of the group (its rank 0 says which) answered")
        self._count_taken(number)
        return joined

    def _count_taken(self, number: int) -> None:
        if self._store.add(f"{number}/taken", 1) == self._size - 1:
            self._store.set(f"{number}/done", b"")

    def _join(self, number: int, data: bytes) -> bytes:
        joined = _ANSWER + data
        for rank in range(1, self._size):
            answer = self._wait(f"{number}/{rank}", f"rank {rank} of the group did not answer")
            if answer.startswith(_REFUSAL):
                joined = answer
                break
            joined += answer.removeprefix(_ANSWER)
        if self._size > 1:
            self._store.set(f"{number}/all", joined)
            # Rank 0's process often has the store: it must not end, as with an error, before the others have read it.
            self._wait(f"{number}/done", "not all ranks of the group took the answer")
        for name in (*range(1, self._size), "all", "taken", "done"):
            self._store.delete_key(f"{number}/{name}")
        return joined

    def _wait(self, key: str, otherwise: str) -> bytes:
        """Return a value once it is there. otherwise: what has not happened by the deadline."""
        try:
            self._store.wait([key], self._timeout)
        except RuntimeError as error:
            translated = translate(error)
            if not isinstance(translated, DeadlineError):
                raise translated from error
            raise DeadlineError(
                f"{otherwise} within {self._timeout_s:g} s (CompressionPolicy.deadline_s): has one ended, or does it "
                "not make what this rank makes?"
            ) from error
        value: bytes = self._store.get(key)
        return value
