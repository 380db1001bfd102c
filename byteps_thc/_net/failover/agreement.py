"""Words that all ranks of a process group exchange through its store, without a collective."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, TypeVar

from byteps_thc._base.errors import DeadlineError, TransportError
from byteps_thc._net.ending import within

if TYPE_CHECKING:  # a session of servers needs no torch
    from byteps_thc._base.torch_private import Store
    from byteps_thc._net.communicator import Backend

T = TypeVar("T")

_POLL_S = 0.02
#: A store that takes longer for an answer counts as lost.
STORE_S = 15.0


class Agreement:
    """One rank's part. store: for these ranks and nothing else. stop: set when this rank waits no longer.

    Raises TransportError if the store is gone or does not answer for STORE_S.
    """

    def __init__(self, store: "Store", rank: int, ranks: int, stop: Event) -> None:
        self._store: Backend = store  # torch's stubs know no bytes
        self.rank, self.ranks, self._stop = rank, ranks, stop

    def ask(self, generation: int, why: str) -> None:
        self._set(f"{generation}/asked", f"rank {self.rank}: {why}")

    def asked(self, generation: int) -> str | None:
        """Return which rank asks to move on to that generation, and why; None: nobody does."""
        key = f"{generation}/asked"
        value: bytes | None = self._call(lambda: self._store.get(key) if self._store.check([key]) else None)
        return None if value is None else value.decode()

    def tell(self, topic: str, text: str) -> None:
        self._set(f"{topic}/{self.rank}", text)

    def told(self, topic: str) -> list[str] | None:
        """Return the words of all ranks, or None unless all have said something."""
        keys = self._keys(topic)
        return self._values(keys) if self._all_are_there(keys) else None

    def exchange(self, topic: str, text: str, deadline: float) -> list[str]:
        """Return the words of all ranks. deadline: of time.monotonic(); DeadlineError names the missing ranks."""
        self.tell(topic, text)
        keys = self._keys(topic)
        while not self._all_are_there(keys):
            if time.monotonic() > deadline:
                late = next((rank for rank, key in enumerate(keys) if not self._all_are_there([key])), self.ranks - 1)
                raise DeadlineError(f"rank {late} of the group does not answer: read its log, it may have ended")
            if self._stop.wait(_POLL_S):
                raise TransportError("the engine was closed")
        return self._values(keys)

    def forget(self, *topics: str) -> None:
        """Delete this rank's words on topics that nobody reads any more."""
        for topic in topics:
            self._call(partial(self._store.delete_key, f"{topic}/{self.rank}"))

    def _set(self, key: str, text: str) -> None:
        self._call(lambda: self._store.set(key, text.encode()))

    def _keys(self, topic: str) -> list[str]:
        return [f"{topic}/{rank}" for rank in range(self.ranks)]

    # All keys at once: with a rank far from the store, each question is a round trip.
    def _all_are_there(self, keys: Sequence[str]) -> bool:
        return bool(self._call(lambda: self._store.check([*keys])))

    def _values(self, keys: Sequence[str]) -> list[str]:
        values: list[bytes] = self._call(lambda: self._store.multi_get([*keys]))
        return [value.decode() for value in values]

    def _call(self, operation: Callable[[], T]) -> T:
        """Return the result of a store operation, in a new thread: check() never returns if the host is unreachable."""
        answer = within(STORE_S, operation, "thc-store")
        try:
            if answer is None:
                raise RuntimeError(f"it has not answered for {STORE_S:g} s")
            return answer.result()
        except RuntimeError as error:
            raise TransportError(
                "the process group's store does not answer, so that ranks cannot agree on servers: check that its "
                f"process, rank 0's or torchrun's, runs, and that its host is reachable. {error}"
            ) from error
