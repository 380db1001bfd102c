"""Words that all ranks of a process group tell each other, by way of its store, without a collective."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

from torch._C._distributed_c10d import Store

from byteps_thc.errors import DeadlineError, TransportError

_POLL_S = 0.02
#: A store that takes longer for an answer is lost.
STORE_S = 15.0


class Agreement:
    """Of one rank. store: of these ranks and nothing else. stop: set when this rank waits no longer.

    Nothing here waits in the store, whose other users would wait, too. Raises TransportError if the store is gone or
    does not answer for STORE_S.
    """

    def __init__(self, store: Store, rank: int, ranks: int, stop: Event) -> None:
        self._store: Any = store  # whose stubs know no bytes
        self.rank, self.ranks, self._stop = rank, ranks, stop

    def ask(self, generation: int, why: str) -> None:
        """Ask all ranks to move on to that generation."""
        self._set(f"{generation}/asked", f"rank {self.rank}: {why}")

    def asked(self, generation: int) -> str | None:
        """Return who asks to move on to that generation, and why; None: nobody does."""
        return self._get(f"{generation}/asked")

    def tell(self, topic: str, text: str) -> None:
        """Put this rank's words on a topic where the others find them."""
        self._set(f"{topic}/{self.rank}", text)

    def told(self, topic: str) -> list[str] | None:
        """Return the words of all ranks, or None: not all have said something."""
        texts = [self._get(f"{topic}/{rank}") for rank in range(self.ranks)]
        return None if None in texts else [text for text in texts if text is not None]

    def exchange(self, topic: str, text: str, deadline: float) -> list[str]:
        """Return what all ranks say. deadline: of time.monotonic(); DeadlineError that names who is missing."""
        self.tell(topic, text)
        texts: list[str] = []
        while len(texts) < self.ranks:
            answer = self._get(f"{topic}/{len(texts)}")
            if answer is not None:
                texts.append(answer)
            elif time.monotonic() > deadline:
                raise DeadlineError(f"rank {len(texts)} of the group does not answer: has it ended?")
            elif self._stop.wait(_POLL_S):
                raise TransportError("the engine was closed")
        return texts

    def forget(self, *topics: str) -> None:
        """Take back what this rank has said on topics that nobody asks about any more."""
        for topic in topics:
            self._call(partial(self._store.delete_key, f"{topic}/{self.rank}"))

    def _set(self, key: str, text: str) -> None:
        self._call(lambda: self._store.set(key, text.encode()))

    def _get(self, key: str) -> str | None:
        value: bytes | None = self._call(lambda: self._store.get(key) if self._store.check([key]) else None)
        return None if value is None else value.decode()

    def _call(self, operation: Callable[[], Any]) -> Any:
        """Return what an operation of the store returns.

        The operation has a thread of its own: if the store's host is unreachable, check() never returns, whatever
        the store's timeout.
        """
        answers: SimpleQueue[tuple[Any, RuntimeError | None]] = SimpleQueue()

        def run() -> None:
            try:
                answers.put((operation(), None))
            except RuntimeError as error:
                answers.put((None, error))

        Thread(target=run, name="thc-store", daemon=True).start()
        try:
            value, error = answers.get(timeout=STORE_S)
        except Empty:
            raise _store_is_gone(f"it has not answered for {STORE_S:g} s") from None
        if error is not None:
            raise _store_is_gone(str(error)) from error
        return value


def _store_is_gone(why: str) -> TransportError:
    return TransportError(
        "the process group's store does not answer, so that ranks cannot agree on servers: has the process with it, "
        f"rank 0's or torchrun's, ended, or is its host unreachable? {why}"
    )
