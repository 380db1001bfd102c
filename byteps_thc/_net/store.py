"""A process group's store as a communicator, for the few words that ranks compare before they have another one.

It also connects several gloo groups of the same ranks together. Gloo reads each rank's address from a store by itself,
in two or three round trips for each group: 16 round trips a group with 4 ranks. Here each group has a local store; the
values that gloo writes are exchanged for all groups at once, and connections are opened side by side. A second exchange
ends it, so that no rank closes a group that another rank still connects.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from byteps_thc._net.communicator import Asking, Backend, Waitable, translate
from byteps_thc._scheme.errors import ConfigurationError, DeadlineError
from byteps_thc._scheme.torch_private import Store

#: First byte of values in the store.
_ANSWER, _REFUSAL = b"+", b"-"
_LENGTH_BYTES = 4
_NO_VALUE = "?"


class _Done(Waitable):
    @override
    def wait(self) -> None:
        pass


class StoreCommunicator(Asking):
    """Host tensors by way of a process group's store, without a connection or a GPU.

    Every rank puts its tensor into the store; rank 0 joins all of them in one value. A collective is two round trips to
    the store on every rank but 0, for any number of ranks: for settings, not for gradients. Calls return when it is
    done. timeout_s: of each wait. DeadlineError names a rank that does not answer; TransportError if the store is gone,
    ConfigurationError if a rank refuses to answer.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float) -> None:
        self._store: Backend = store  # torch's stubs know no bytes
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
            # Rank 0's process often has the store: it must not end, as after an error, before the others have read the
            # value.
            if self._missing([f"{number}/taken{rank}" for rank in others]):
                raise self._late("not all ranks of the group took the answer")
        for name in (*answers, f"{number}/all"):
            self._store.set(name, b"")  # no round trip, unlike a deletion
        return joined

    def _missing(self, keys: Sequence[str]) -> list[str]:
        """Wait for all keys; return those without a value at the deadline."""
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


#: Decodes any bytes to a text, and back.
_ANY_BYTES = "latin-1"


def connect_groups(
    questions: StoreCommunicator, rank: int, size: int, timeout_s: float, count: int
) -> list[dist.ProcessGroupGloo]:
    """Return `count` new gloo groups of the ranks of `questions`; collective.

    timeout_s: of every wait. Raises RuntimeError, as gloo does, and the errors of StoreCommunicator.gather().
    """
    addresses = _Addresses(count, timeout_s)
    groups: list[Backend] = [None] * count

    def connect(group: int) -> None:
        try:
            store = _LocalStore(addresses, group)
            groups[group] = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout_s))
        except Exception as error:  # raised by the caller
            addresses.fail(error)
        finally:
            addresses.finish()

    threads = [
        threading.Thread(target=connect, args=(group,), name="thc-connect", daemon=True) for group in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        while (told := addresses.next_told()) is not None:
            addresses.learn(questions.gather(told))
    except Exception as error:
        addresses.fail(error)
        raise
    finally:
        for thread in threads:
            thread.join()
    if addresses.error is not None:
        own = dist.get_rank() if dist.is_initialized() else rank
        questions.refuse(f"rank {own} cannot connect: {addresses.error}")
        raise addresses.error
    questions.gather(b"")  # a rank may close its groups at once: the others must be connected before
    return groups


class _Addresses:
    """Values that gloo puts into the stores of this rank and the others. Thread-safe.

    Constructors of groups put the same number of values on all ranks: the first ones of all groups are exchanged
    together, then the second ones if there are any.
    """

    def __init__(self, groups: int, timeout_s: float) -> None:
        self._groups, self._timeout_s = groups, timeout_s
        self._changed = threading.Condition()
        self._mine: list[list[tuple[str, bytes]]] = [[] for _ in range(groups)]
        self._known: list[dict[str, bytes]] = [{} for _ in range(groups)]
        self._told = self._finished = 0
        self.error: Exception | None = None

    def put(self, group: int, key: str, value: bytes) -> None:
        with self._changed:
            self._mine[group].append((key, value))
            self._changed.notify_all()

    def get(self, group: int, key: str) -> bytes:
        """Return a value of any rank once it is known. RuntimeError if the exchange has failed."""
        # The exchange, which waits twice, ends earlier, and names the missing rank.
        longest_s = 3.0 * self._timeout_s
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._known[group] or self.error, longest_s):
                raise RuntimeError(f"timed out after {longest_s:g} s waiting for the address {key!r}")
            if key not in self._known[group]:
                raise RuntimeError(f"addresses were not exchanged: {self.error}")
            return self._known[group][key]

    def next_told(self) -> bytes | None:
        """Return the next values of all groups as a text for learn(); None: no more."""
        with self._changed:
            self._changed.wait_for(lambda: self.error or self._finished == self._groups or self._all_have_next())
            if self.error or not self._all_have_next():
                return None
            told = [values[self._told] for values in self._mine]
            self._told += 1
        return json.dumps([(key, value.decode(_ANY_BYTES)) for key, value in told]).encode()

    def learn(self, everyone: Sequence[bytes]) -> None:
        with self._changed:
            for text in everyone:
                for known, (key, value) in zip(self._known, json.loads(text), strict=True):
                    known[key] = value.encode(_ANY_BYTES)
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """End all waits; the first error is kept."""
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self._finished += 1
            self._changed.notify_all()

    def _all_have_next(self) -> bool:
        return self._finished < self._groups and all(len(values) > self._told for values in self._mine)


class _LocalStore(Store):
    def __init__(self, addresses: _Addresses, group: int) -> None:
        super().__init__()
        self._addresses, self._group = addresses, group

    @override
    def set(self, key: str, value: object) -> None:
        self._addresses.put(self._group, key, bytes(cast(bytes, value)))

    @override
    def get(self, key: str) -> bytes:
        return self._addresses.get(self._group, key)

    @override
    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._addresses.get(self._group, key)
