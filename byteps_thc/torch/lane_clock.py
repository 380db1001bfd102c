"""The lanes' share of the CPU: the lane that the next forward pass needs first goes ahead."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from byteps_thc.engines.work_clock import WorkClock


class Turns:
    """Lets as many threads compute as there are CPUs; when more want to, those of the lowest lane go first."""

    def __init__(self, lanes: int, slots: int | None = None) -> None:
        self._free = slots or len(os.sched_getaffinity(0))
        self._waiting = [0] * lanes
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, lane: int) -> Iterator[None]:
        """Wait until no lower lane waits and a CPU is free, and keep it during the block."""
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
    """The clock of one lane's engine: all lanes share the time, and take turns to work."""

    def __init__(self, shared: WorkClock, turns: Turns, lane: int) -> None:
        super().__init__()
        self._shared, self._turns, self._lane = shared, turns, lane

    def buffers(self, change: int) -> None:
        """See WorkClock."""
        self._shared.buffers(change)

    @contextmanager
    def working(self) -> Iterator[None]:
        """See WorkClock. Waits for the lane's turn first."""
        with self._turns.turn(self._lane), self._shared.working():
            yield

    def take_idle_ms(self) -> float:
        """See WorkClock: the time in which no lane worked."""
        return self._shared.take_idle_ms()
