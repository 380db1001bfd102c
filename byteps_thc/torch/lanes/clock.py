"""The lanes' share of the CPUs: the lane that the next forward pass needs first goes ahead."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from typing_extensions import override

from byteps_thc._engine.work_clock import WorkClock


class PrioritySemaphore:
    """Lets `slots` threads compute at a time; when more want to, those of the lowest lane go first.

    slots: as many as there are CPUs for this process by default.
    """

    def __init__(self, lanes: int, slots: int | None = None) -> None:
        self._free = slots or len(os.sched_getaffinity(0))
        self._waiting = [0] * lanes
        self._changed = threading.Condition()

    @contextmanager
    def slot(self, lane: int) -> Iterator[None]:
        """Wait until no lower lane waits and a slot is free, and keep it during the block."""
        with self._changed:
            self._waiting[lane] += 1
            self._changed.wait_for(lambda: self._free > 0 and not any(self._waiting[:lane]))
            self._waiting[lane] -= 1
            self._free -= 1
            self._changed.notify_all()  # a higher lane may have waited for this one alone
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()


class LaneClock(WorkClock):
    """The clock of one lane's engine: all lanes share the time, and working() waits for a slot of the CPUs."""

    def __init__(self, shared: WorkClock, cpus: PrioritySemaphore, lane: int) -> None:
        super().__init__()
        self._shared, self._cpus, self._lane = shared, cpus, lane

    @override
    def buffers(self, change: int) -> None:
        self._shared.buffers(change)

    @override
    @contextmanager
    def working(self) -> Iterator[None]:
        with self._cpus.slot(self._lane), self._shared.working():
            yield

    @override
    def take_idle_ms(self) -> float:
        """Return the time since the last call of any lane in which no lane worked."""
        return self._shared.take_idle_ms()
