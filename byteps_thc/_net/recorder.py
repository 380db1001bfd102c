"""What transports report."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class PlainCollective:
    """What the same collective sends without compression: coordinates for each of a gradient's.

    compressed: for those of gradients that travel compressed; exact: for others, which an engine of servers sums by an
    all-reduce.
    """

    compressed: float = 1.0
    exact: float = 1.0

    @classmethod
    def among_ranks(cls, ranks: int, *, sharded: bool) -> Self:
        """Return that of an engine without servers: a ring all-reduce. sharded: a reduce-scatter, half of it."""
        sent = (1 if sharded else 2) * (ranks - 1) / ranks
        return cls(sent, sent)

    @classmethod
    def servers(cls, workers: int) -> Self:
        """Return that of workers that push gradients to servers, and sum what these do not by an all-reduce."""
        return cls(1.0, 2 * (workers - 1) / workers)


class TrafficRecorder:
    """Adds up what transports report; any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counter[str]()

    def add(self, **amounts: int) -> None:
        """Count amounts, by the names of CompressionStats."""
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount

    def add_collective(self, volume_bytes: int, ranks: int) -> None:
        """Count a collective of `ranks` ranks: each sends, and receives, all of that volume but its own part.

        volume_bytes: the whole of an all-to-all or all-gather; twice the tensor of an all-reduce, which is a ring.
        """
        sent_bytes = volume_bytes * (ranks - 1) // ranks
        self.add(sent_bytes=sent_bytes, received_bytes=sent_bytes)
