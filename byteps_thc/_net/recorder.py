"""What transports report."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Self


def moved_bytes(volume_bytes: int, ranks: int) -> int:
    """Return what a rank sends in a collective, all of that volume but its own part; it receives as much.

    All-to-all and all-gather: the whole of it; a ring all-reduce, as gloo and NCCL do it: twice the tensor.
    """
    return volume_bytes * (ranks - 1) // ranks


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
        """Return that of an engine without servers. sharded: a rank gets a shard only."""
        return cls.reduce_scatter(ranks) if sharded else cls.all_reduce(ranks)

    @classmethod
    def all_reduce(cls, ranks: int) -> Self:
        """Return a ring's."""
        return cls(2 * (ranks - 1) / ranks, 2 * (ranks - 1) / ranks)

    @classmethod
    def reduce_scatter(cls, ranks: int) -> Self:
        """Return that of a gradient of which a rank gets a shard."""
        return cls((ranks - 1) / ranks, (ranks - 1) / ranks)

    @classmethod
    def servers(cls, workers: int) -> Self:
        """Return that of workers that push gradients to servers, and sum what these do not by an all-reduce."""
        return cls(1.0, 2 * (workers - 1) / workers)


class TrafficRecorder:
    """Adds up what transports report; any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent_bytes = self._received_bytes = 0
        self._to_host_bytes = self._to_device_bytes = 0
        self._retransmissions = self._lost_chunks = 0
        self._expected_contributions = self._missing_contributions = 0
        self._server_moves = self._failover_losses = 0

    def add_traffic(self, *, sent_bytes: int = 0, received_bytes: int = 0) -> None:
        """Count payload bytes."""
        with self._lock:
            self._sent_bytes += sent_bytes
            self._received_bytes += received_bytes

    def add_collective(self, volume_bytes: int, ranks: int) -> None:
        """Count a collective of `ranks` ranks that moves this volume (see moved_bytes)."""
        sent_bytes = moved_bytes(volume_bytes, ranks)
        self.add_traffic(sent_bytes=sent_bytes, received_bytes=sent_bytes)

    def add_copies(self, *, to_host_bytes: int = 0, to_device_bytes: int = 0) -> None:
        """Count bytes copied from a GPU to host memory, and back."""
        with self._lock:
            self._to_host_bytes += to_host_bytes
            self._to_device_bytes += to_device_bytes

    def add_losses(self, *, retransmissions: int = 0, lost_chunks: int = 0) -> None:
        """Count packets that were repeated, and packets given up."""
        with self._lock:
            self._retransmissions += retransmissions
            self._lost_chunks += lost_chunks

    def add_contributions(self, *, expected: int, arrived: int) -> None:
        """Count contributions of workers to packets of sums: what would be in them without losses, and what is."""
        with self._lock:
            self._expected_contributions += expected
            self._missing_contributions += expected - arrived

    def add_server_move(self) -> None:
        """Count a move of all ranks to other servers."""
        with self._lock:
            self._server_moves += 1

    def add_failover_loss(self) -> None:
        """Count that this rank cannot move to other servers any more."""
        with self._lock:
            self._failover_losses += 1
