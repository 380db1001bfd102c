"""A process group's store as a communicator, for the few words that ranks compare before they have another one."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._base.errors import ConfigurationError, DeadlineError
from byteps_thc._base.torch_private import Store
from byteps_thc._net.communicator import Asking, Backend, Waitable, translate

#: First byte of values in the store.
_ANSWER, _REFUSAL = b"+", b"-"
_LENGTH_BYTES = 4
#: Length of a wait between two calls of `meanwhile`, and of a pause in which other threads may use the store.
_SLICE_S, _PAUSE_S = 1.0, 0.01
_NO_VALUE = "?"


class _Done(Waitable):
    @override
    def wait(self) -> None:
        pass


class StoreCommunicator(Asking):
    """Host tensors by way of a process group's store, without a connection or a GPU.

    Rank 0 joins the tensors of all ranks in one value, so a collective is two round trips on every other rank. Calls
    return when it is done. timeout_s: of each wait. Raises DeadlineError, naming a rank that does not answer,
    TransportError if the store is gone, and ConfigurationError if a rank refuses to answer. meanwhile: called while a
    call waits. Its errors end the wait.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float) -> None:
        self._store: Backend = store  # torch's stubs know no bytes
        self._rank, self._size = rank, size
        self._timeout_s, self._number = timeout_s, 0
        self.meanwhile: Callable[[], None] | None = None

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
        """Answer the next collective with `reason`, which other ranks raise as ConfigurationError. Waits for nobody."""
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
        data = mine.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return [
            torch.frombuffer(bytearray(theirs), dtype=mine.dtype).view(mine.shape) if theirs else mine
            for theirs in self.gather(data)
        ]

    def _take(self, number: int, data: bytes) -> bytes:
        self._store.set(f"{number}/{self._rank}", _ANSWER + data)
        if self._missing([f"{number}/all"]):
            raise self._late("not all ranks of the group (its rank 0 says which) answered")
        # get() would cost another round trip, to wait for the value once more.
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
            # Rank 0's process often has the store: it must not end before the others have read the value.
            if self._missing([f"{number}/taken{rank}" for rank in others]):
                raise self._late("not all ranks of the group took the answer")
        for name in (*answers, f"{number}/all"):
            self._store.set(name, b"")  # no round trip, unlike a deletion
        return joined

    def _missing(self, keys: Sequence[str]) -> list[str]:
        """Wait for all keys; return those without a value at the deadline."""
        if not keys:
            return []
        until_s = time.monotonic() + self._timeout_s
        while True:
            left_s = max(until_s - time.monotonic(), _PAUSE_S)
            try:
                self._store.wait([*keys], timedelta(seconds=min(left_s, _SLICE_S) if self.meanwhile else left_s))
                return []
            except RuntimeError as error:
                if not isinstance(translate(error), DeadlineError):
                    raise
            if time.monotonic() >= until_s:
                return [key for key in keys if not self._store.check([key])] or [keys[-1]]
            time.sleep(_PAUSE_S)
            if self.meanwhile:
                self.meanwhile()

    def _late(self, what: str) -> DeadlineError:
        return DeadlineError(
            f"{what} within {self._timeout_s:g} s (CompressionPolicy.deadline_s): has it ended, or does it "
            "not call compress(), or what else this rank calls?"
        )


def _join(texts: Sequence[bytes]) -> bytes:
    return b"".join(len(text).to_bytes(_LENGTH_BYTES, "big") + text for text in texts)


def _split(joined: bytes) -> list[bytes]:
    texts, at = [], 0
    while at < len(joined):
        end = at + _LENGTH_BYTES + int.from_bytes(joined[at : at + _LENGTH_BYTES], "big")
        texts.append(joined[at + _LENGTH_BYTES : end])
        at = end
    return texts
