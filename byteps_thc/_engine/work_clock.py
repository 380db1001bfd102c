"""Time that several threads leave unused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from byteps_thc._engine.statistics import StatsRecorder


class WorkClock:
    """Measures the time in which buffers are in flight and no thread computes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight = 0
        self._busy = 0
        self._idle_s = 0.0
        self._since = 0.0

    def buffers(self, change: int) -> None:
        """Count buffers that begin (+) or end (-) their way through the engine."""
        with self._lock:
            self._account()
            self._in_flight += change

    @contextmanager
    def timed(self, recorder: StatsRecorder, figure: Literal["encode_ms", "decode_ms"]) -> Iterator[None]:
        """Count the block as work, and report its time as that figure unless it raises."""
        with self._lock:
            self._account()
            self._busy += 1
        start = time.perf_counter()
        try:
            yield
            recorder.add_time(**{figure: (time.perf_counter() - start) * 1e3})
        finally:
            with self._lock:
                self._account()
                self._busy -= 1

    def take_idle_ms(self) -> float:
        """Return the time since the last call."""
        with self._lock:
            self._account()
            idle_s, self._idle_s = self._idle_s, 0.0
            return idle_s * 1e3

    def _account(self) -> None:
        now = time.perf_counter()
        if self._in_flight and not self._busy:
            self._idle_s += now - self._since
        self._since = now
