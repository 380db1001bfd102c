"""Ends devices that wait for each other: a rank has begun another gradient than the others.

NCCL waits until the deadline for a collective that another rank never starts, and no thread of the host waits with it.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch.distributed as dist

from byteps_thc._base.errors import InputError
from byteps_thc._base.torch_private import PrefixStore
from byteps_thc._net.communicator import Backend
from byteps_thc._net.ending import close_at_exit

#: Longest time between two looks, and their number within a deadline. An error takes five at most.
_PERIOD_S, _LOOKS = 5.0, 10
_KEPT = 256  # gradients
_JOIN_S = 2.0
#: Keys of the store: rank 0's gradients, and the error of all ranks.
_BEGUN, _ERROR = "begun", "error"


class Watch:
    """Compares the gradients on a device with rank 0's, in a thread, while no new one begins.

    store: for these ranks alone. hint: last sentence of the error. aborts: end collectives under way.
    """

    def __init__(
        self, store: PrefixStore, rank: int, deadline_s: float, hint: str, aborts: Sequence[Callable[[], None]]
    ) -> None:
        self._store: Backend = store  # torch's stubs know no bytes
        self._rank, self._world_rank = rank, dist.get_rank()
        self._hint, self._aborts = hint, aborts
        self._period_s = min(_PERIOD_S, deadline_s / _LOOKS)
        self._begun = deque([(0, "nothing")], _KEPT)  # numbers and descriptions
        self._error: str | None = None
        self._ended: Callable[[InputError], object] = lambda _: None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="thc-watch", daemon=True)

    def began(self, gradient: str) -> None:
        """Note the next gradient, before any of its payload leaves."""
        self._begun.append((self._begun[-1][0] + 1, gradient))

    def require_same(self) -> None:
        """Raise InputError if ranks are known to have begun different gradients."""
        if self._error is not None:
            raise InputError(self._error)

    def start(self, ended: Callable[[InputError], object]) -> None:
        """Begin to watch. ended: called once, in another thread, before collectives are aborted."""
        self._ended = ended
        self._thread.start()
        close_at_exit(self.close)

    def tell(self, error: InputError) -> None:
        """End the engines of all ranks with an error of some ranks."""
        with suppress(RuntimeError):  # of a lost store: the other ranks see that, too
            self._store.compare_set(_ERROR, "", str(error))  # the first one stays

    def end(self, error: InputError) -> None:
        """End the engine of this rank alone."""
        self._error = str(error)
        self._over.set()
        try:
            self._ended(error)
        finally:
            for abort in self._aborts:
                abort()

    def close(self) -> None:
        """Watch no longer. Repeated calls are allowed."""
        self._over.set()
        if self._thread.ident not in (None, threading.get_ident()):
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        newest = None
        while not self._over.wait(self._period_s):
            try:
                error = self._look() if newest == self._begun[-1][0] else None
            except RuntimeError:  # the store is gone, as is the training
                return
            if error is not None:
                self.end(error)
            newest = self._begun[-1][0]

    def _look(self) -> InputError | None:
        begun = list(self._begun)
        if self._rank == 0:
            self._store.set(_BEGUN, json.dumps([self._world_rank, begun]))
        elif self._store.check([_BEGUN]):
            root, theirs = json.loads(self._store.get(_BEGUN))
            named = dict(theirs)
            for number, mine in begun:
                if named.get(number, mine) != mine:
                    who = f"{named[number]} on rank {root}, {mine} on rank {self._world_rank}"
                    text = f"ranks average different gradients: what differs first is {who}. {self._hint}"
                    self.tell(InputError(text))
                    break
        return InputError(self._store.get(_ERROR).decode()) if self._store.check([_ERROR]) else None
