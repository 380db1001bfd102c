"""Connects several gloo groups of the same ranks together.

Each group has a local store, and the addresses that gloo writes are exchanged for all groups at once: gloo's own
exchange takes 16 round trips a group with 4 ranks.
"""

import json
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import torch.distributed as dist
from typing_extensions import override

from byteps_thc._base.torch_private import Store
from byteps_thc._net.communicator import Backend
from byteps_thc._net.store import StoreCommunicator

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

    threads = [threading.Thread(target=connect, args=(n,), name="thc-connect", daemon=True) for n in range(count)]
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

    All groups put the same number of values on all ranks: their first ones are exchanged together, then the second.
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
