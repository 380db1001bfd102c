"""Words that all ranks of a process group tell each other, by way of its store, without a collective."""

from __future__ import annotations

import time
from threading import Event
from typing import Any

from torch._C._distributed_c10d import Store

from byteps_thc.errors import DeadlineError, TransportError

_POLL_S = 0.02


class Agreement:
    """Of one rank. store: of these ranks and nothing else. stop: set when this rank waits no longer.

    Nothing here waits in the store, whose other users would wait, too. TransportError when it is gone.
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
        try:
            for topic in topics:
                self._store.delete_key(f"{topic}/{self.rank}")
        except RuntimeError as error:
            raise _store_is_gone(error) from error

    def _set(self, key: str, text: str) -> None:
        try:
            self._store.set(key, text.encode())
        except RuntimeError as error:
            raise _store_is_gone(error) from error

    def _get(self, key: str) -> str | None:
        try:
            if not self._store.check([key]):
                return None
            value: bytes = self._store.get(key)
        except RuntimeError as error:
            raise _store_is_gone(error) from error
        return value.decode()


def _store_is_gone(error: RuntimeError) -> TransportError:
    return TransportError(
        "the process group's store does not answer, so that ranks cannot agree on servers: has the process with it, "
        f"rank 0's or torchrun's, ended? {error}"
    )
