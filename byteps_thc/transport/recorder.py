"""What transports report."""

from __future__ import annotations

from typing import Protocol


def moved_bytes(volume_bytes: int, ranks: int) -> int:
    """Return what a rank sends in a collective, all of that volume but its own part; it receives as much.

    All-to-all and all-gather: the whole of it; a ring all-reduce, as gloo and NCCL do it: twice the tensor.
    """
    return volume_bytes * (ranks - 1) // ranks


class TrafficRecorder(Protocol):
    """Adds up traffic; any thread may call any method. byteps_thc.pipeline.statistics has one."""

    def add_traffic(self, *, sent_bytes: int = 0, received_bytes: int = 0) -> None:
        """Count payload bytes."""

    def add_collective(self, volume_bytes: int, ranks: int) -> None:
        """Count a collective of `ranks` ranks that moves this volume (see moved_bytes)."""

    def add_copies(self, *, to_host_bytes: int = 0, to_device_bytes: int = 0) -> None:
        """Count bytes copied from a GPU to host memory, and back."""

    def add_losses(self, *, retransmissions: int = 0, lost_chunks: int = 0) -> None:
        """Count packets that were repeated, and packets given up."""

    def add_contributions(self, *, expected: int, arrived: int) -> None:
        """Count contributions of workers to packets of sums: what would be in them without losses, and what is."""
