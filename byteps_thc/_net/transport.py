"""How norms, codes and sums travel between the workers: what differs between the routes."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Protocol, Self

from byteps_thc._scheme.arrays import F32, U8, U16

#: The first words of what Transfer.send_norms() takes, which are the same on all workers that average the same
#: gradient (_engine/fingerprint.py).
FINGERPRINT_WORDS = 2
#: The words behind them where sums may be damaged on the way without notice: those of Transfer.digest().
DIGEST_WORDS = 2


class Transfer(Protocol):
    """The way of one piece of a gradient through the network, and the buffers it needs; used again every step.

    Called once per step in this order: send_norms by one thread, wait_norms and send_codes by the next one, wait_sums
    and aggregate by the last. Everything may raise TransportError or DeadlineError. Arrays are flat.
    """

    codes: U8
    """where the packed codes are to be put"""

    def send_norms(self, norms: F32) -> None:
        """Start the maximum of float32[norms]: fingerprint and norms without signs (_engine/fingerprint.py).

        They are compared as integers, with NaN above infinity, and may be overwritten by the maximum.
        """

    def wait_norms(self) -> F32:
        """Return float32[norms], the maximum over the workers; zeros when a quorum has left this one behind.

        When the fingerprints are not the same on all workers, their maxima may be all that there is.
        """

    def send_codes(self) -> None:
        """Start the sum of the table values of `codes`."""

    def wait_sums(self) -> None:
        """Wait for what aggregate() needs."""

    def digest(self) -> int:
        """Return 32 bits of the maxima and sums that came, which all workers must have; 0: the route sees to it."""
        return 0

    def aggregate(self) -> tuple[U8 | U16, U8 | U16]:
        """Return the sums, one per code, and the number of workers in each chunk of Transport.codes_per_chunk of them.

        uint8 or uint16 (value_bits).
        """


class Transport(Protocol):
    """Makes transfers; all workers make those of new names in the same order."""

    codes_per_chunk: int | None
    """codes that are lost or arrive together; None: a whole piece"""
    compared_words: int = FINGERPRINT_WORDS
    """first words of norms that must be the same on all workers"""
    servers: int = 1
    """how many sum pieces in turns: they have as much to do if a gradient has a multiple of that many pieces"""

    def new_transfer(self, name: str, norms: int, codes: int) -> Transfer:
        """Return a transfer of pieces with that many words to find the maximum of, and codes in a row.

        name: the piece's, the same on all workers; BytePS's servers know pieces apart by it, also when it comes again.
        """

    def close(self) -> None:
        """Release sockets and threads, if there are any; transfers in flight fail."""
        return


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
