"""A process group's store as a communicator: for the few words that ranks compare before they have another one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store
from typing_extensions import override

from byteps_thc._net.communicator import Asking, Backend, Waitable, translate
from byteps_thc._scheme.errors import ConfigurationError, DeadlineError

#: What values in the store begin with.
_ANSWER, _REFUSAL = b"+", b"-"
_LENGTH_BYTES = 4
#: No value in the store is this.
_NO_VALUE = "?"


class _Done(Waitable):
    @override
    def wait(self) -> None:
        pass


class StoreCommunicator(Asking):
    """Host tensors by way of the store of a process group, without a connection or a GPU of its own.

    Every rank puts its tensor into the store; rank 0 takes them out, and puts all of them back as one value. So a
    collective is two round trips to the store on every rank but 0, however many ranks there are: for settings, not for
    gradients. Calls return when it is done. timeout_s: of each wait. DeadlineError that names a rank when it does not
    answer, TransportError when the store is gone, ConfigurationError when a rank refuses to answer.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float) -> None:
        self._store: Backend = store  # whose stubs know no bytes
        self._rank, self._size = rank, size
        self._timeout, self._timeout_s = timedelta(seconds=timeout_s), timeout_s
        self._number = 0

    def gather(self, text: bytes) -> list[bytes]:
        """Return the texts of all ranks, of any lengths."""
        number = self._next()
        try:
            joined = self._join(number, text) if self._rank == 0 else self._take(number, text)
        except RuntimeError as error:
            raise translate(error) from error
        if joined.startswith(_REFUSAL):
            raise ConfigurationError(joined.removeprefix(_REFUSAL).decode())
        return _split(joined.removeprefix(_ANSWER))

    @override
    def max_(self, tensor: Tensor) -> Waitable:
        tensor.copy_(torch.stack(self._everyone(tensor)).amax(0))
        return _Done()

    @override
    def all_gather(self, output: Tensor, source: Tensor) -> Waitable:
        output.view(-1).copy_(torch.cat([theirs.view(-1) for theirs in self._everyone(source)]))
        return _Done()

    def refuse(self, reason: str) -> None:
        """Take part in the next collective without a tensor: other ranks get ConfigurationError, which says why.

        Waits for nobody.
        """
        number, refusal = self._next(), _REFUSAL + reason.encode()
        try:
            self._store.set(f"{number}/{self._rank or 'all'}", refusal)
            if self._rank:
                self._store.set(f"{number}/taken{self._rank}", b"")
        except RuntimeError as error:
            raise translate(error) from error

    def _next(self) -> int:
        number, self._number = self._number, self._number + 1
        return number

    def _everyone(self, mine: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, which have the same shape and type."""
        data = mine.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return [
            torch.frombuffer(bytearray(theirs), dtype=mine.dtype).view(mine.shape) if theirs else mine
            for theirs in self.gather(data)
        ]

    def _take(self, number: int, data: bytes) -> bytes:
        self._store.set(f"{number}/{self._rank}", _ANSWER + data)
        if self._missing([f"{number}/all"]):
            raise self._late("not all ranks of the group (its rank 0 says which) answered")
        # get() would wait for the value once more, which is another round trip.
        joined: bytes = self._store.compare_set(f"{number}/all", _NO_VALUE, _NO_VALUE)
        self._store.set(f"{number}/taken{self._rank}", b"")
        return joined

    def _join(self, number: int, data: bytes) -> bytes:
        others = range(1, self._size)
        answers = [f"{number}/{rank}" for rank in others]
        if missing := self._missing(answers):
            raise self._late(f"rank {others[answers.index(missing[0])]} of the group did not answer")
        texts: list[bytes] = self._store.multi_get(answers) if answers else []
        refusals = [text for text in texts if text.startswith(_REFUSAL)]
        joined = refusals[0] if refusals else _ANSWER + _join([data, *(text.removeprefix(_ANSWER) for text in texts)])
        if answers:
            self._store.set(f"{number}/all", joined)
            # Rank 0's process often has the store: it must not end, as with an error, before the others have read it.
            if self._missing([f"{number}/taken{rank}" for rank in others]):
                raise self._late("not all ranks of the group took the answer")
        for name in (*answers, f"{number}/all"):
            self._store.set(name, b"")  # which takes no round trip, as deleting it would
        return joined

    def _missing(self, keys: Sequence[str]) -> list[str]:
        """Wait for all of the keys; return those that have no value at the deadline."""
        if not keys:
            return []
        try:
            self._store.wait([*keys], self._timeout)
        except RuntimeError as error:
            if not isinstance(translate(error), DeadlineError):
                raise
            return [key for key in keys if not self._store.check([key])] or [keys[-1]]
        return []

    def _late(self, what: str) -> DeadlineError:
        return DeadlineError(
            f"{what} within {self._timeout_s:g} s (CompressionPolicy.deadline_s): has one ended, or does it "
            "not make what this rank makes?"
        )


def _join(texts: Sequence[bytes]) -> bytes:
    return b"".join(len(text).to_bytes(_LENGTH_BYTES, "big") + text for text in texts)


def _split(joined: bytes) -> list[bytes]:
    """Return what _join() was called on."""
    texts, at = [], 0
    while at < len(joined):
        end = at + _LENGTH_BYTES + int.from_bytes(joined[at : at + _LENGTH_BYTES], "big")
        texts.append(joined[at + _LENGTH_BYTES : end])
        at = end
    return texts
