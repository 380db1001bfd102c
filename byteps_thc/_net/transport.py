"""How norms, codes and sums travel between the workers: what differs between the routes."""

from __future__ import annotations

from typing import Protocol

from byteps_thc._scheme.arrays import F32, U8, U16

#: The first words of what Transfer.send_norms() takes, which are the same on all workers that average the same
#: gradient (_engine/fingerprint.py).
FINGERPRINT_WORDS = 2


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

    def aggregate(self) -> tuple[U8 | U16, U8 | U16]:
        """Return the sums, one per code, and the number of workers in each chunk of Transport.codes_per_chunk of them.

        uint8 or uint16 (value_bits).
        """


class Transport(Protocol):
    """Makes transfers; all workers make those of new names in the same order."""

    codes_per_chunk: int | None
    """codes that are lost or arrive together; None: a whole piece"""
    servers: int = 1
    """how many sum pieces in turns: they have as much to do if a gradient has a multiple of that many pieces"""

    def new_transfer(self, name: str, norms: int, codes: int) -> Transfer:
        """Return a transfer of pieces with that many words to find the maximum of, and codes in a row.

        name: the piece's, the same on all workers; BytePS's servers know pieces apart by it, also when it comes again.
        """

    def close(self) -> None:
        """Release sockets and threads, if there are any; transfers in flight fail."""
        return
