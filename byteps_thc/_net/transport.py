"""The interface of routes: how norms, codes and sums travel between the workers."""

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Protocol, Self

from byteps_thc._base.arrays import F32, U8, U16

#: First words of Transfer.send_norms(), equal on all workers that average the same gradient (_engine/fingerprint.py).
FINGERPRINT_WORDS = 2
#: Words of Transfer.digest() behind them, on routes that may damage sums without notice.
DIGEST_WORDS = 2


class Transfer(Protocol):
    """The route of one piece of a gradient through the network, with its buffers; used again every step.

    Once per step: send_norms by one thread, wait_norms and send_codes by the next, wait_sums and aggregate by the last.
    All may raise TransportError or DeadlineError. Arrays are flat.
    """

    codes: U8
    """memory for the packed codes"""

    def send_norms(self, norms: F32) -> None:
        """Start the maximum, as integers, of float32[norms]: fingerprint and norms, which may be overwritten by it."""

    def wait_norms(self) -> F32:
        """Return float32[norms], the maximum over the workers; zeros if a quorum was complete without this worker.

        Only the maxima of fingerprints are valid if fingerprints differ.
        """

    def send_codes(self) -> None:
        """Start the sum of the table values of `codes`."""

    def wait_sums(self) -> None:
        """Wait for aggregate()'s sums."""

    def digest(self) -> int:
        """Return 32 bits of the received maxima and sums, to compare between workers; 0: the route ensures equality."""
        return 0

    def aggregate(self) -> tuple[U8 | U16, U8 | U16]:
        """Return the sums, uint8 or uint16[codes], and the number of workers in each chunk of codes_per_chunk codes."""


class Transport(Protocol):
    """Makes transfers; all workers request new names in the same order."""

    codes_per_chunk: int | None
    """codes that are lost or arrive together; None: a whole piece"""
    compared_words: int = FINGERPRINT_WORDS
    """first words of norms that must be the same on all workers"""
    servers: int = 1
    """number of servers that sum pieces in turn: multiples of that many pieces balance their work"""

    def new_transfer(self, name: str, norms: int, codes: int) -> Transfer:
        """Return a transfer of pieces with `norms` words for the maximum, and `codes` codes.

        name: the piece's, the same on all workers; BytePS's servers identify pieces by it, in all rounds.
        """

    def close(self) -> None:
        """Release sockets and threads; transfers in flight fail."""
        return


@dataclass(frozen=True)
class PlainCollective:
    """Coordinates that the same collective sends uncompressed for each coordinate of a gradient.

    compressed: of compressed gradients. exact: of others, which an engine of servers sums by an all-reduce.
    """

    compressed: float = 1.0
    exact: float = 1.0

    @classmethod
    def among_ranks(cls, ranks: int, *, sharded: bool) -> Self:
        """Return the traffic among ranks: a ring all-reduce, or half of it, a reduce-scatter, if sharded."""
        sent = (1 if sharded else 2) * (ranks - 1) / ranks
        return cls(sent, sent)

    @classmethod
    def servers(cls, workers: int) -> Self:
        """Return the traffic with servers: a push of compressed gradients, an all-reduce of others."""
        return cls(1.0, 2 * (workers - 1) / workers)


class TrafficRecorder:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counter[str]()

    def add(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount

    def add_collective(self, volume_bytes: int, ranks: int) -> None:
        """Count a collective: each rank sends and receives volume_bytes (twice the tensor in a ring) but its part."""
        sent_bytes = volume_bytes * (ranks - 1) // ranks
        self.add(sent_bytes=sent_bytes, received_bytes=sent_bytes)
