"""How norms, codes and sums travel between the workers: what differs between the routes."""

from __future__ import annotations

from typing import Any, Protocol

#: The first words of what Transfer.send_norms() takes, which are the same on all workers that average the same
#: gradient (pipeline/fingerprint.py).
FINGERPRINT_WORDS = 2


class Transfer(Protocol):
    """The way of one piece of a gradient through the network, and the buffers it needs; used again every step.

    Called once per step in this order: send_norms by one thread, wait_norms and send_codes by the next one, wait_codes,
    sum and send_sums, wait_sums and aggregate. Everything may raise TransportError or DeadlineError. Arrays are flat;
    those of a piece of several rows hold row after row. They are NumPy arrays in host memory, or tensors where the
    kernels are on a device and the transport moves its memory; in its stream nothing waits, then.
    """

    codes: Any
    """uint8, where the packed codes are to be put; on a device in the round that is under way"""

    def send_norms(self, norms: Any) -> None:
        """Start the maximum of float32[norms]: fingerprint and norms without signs (pipeline/fingerprint.py).

        They are compared as integers, with NaN above infinity, and may be overwritten by the maximum.
        """

    def wait_norms(self) -> Any:
        """Return float32[norms], the maximum over the workers; zeros when a quorum has left this one behind.

        When the fingerprints are not the same on all workers, their maxima may be all that there is.
        """

    def send_codes(self) -> None:
        """Start the sum of the table values of `codes`."""

    def wait_sums(self) -> None:
        """Wait for what aggregate() needs."""

    def aggregate(self) -> tuple[Any, Any]:
        """Return the sums, one per code of the row that this worker decodes, and the number of workers in each chunk of
        Transport.codes_per_chunk of them.

        uint8 or uint16 (value_bits); on a device sums as they have travelled, and None: all workers are in all of them.
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
