"""How norms, codes and sums travel between the workers: what differs between the engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from byteps_thc.arrays import F32, U8, U16
from byteps_thc.engines.lanes import Waitable

#: Starts replacing a float32 host tensor by its sum over the workers, exactly; in order of the calls.
ExactSum = Callable[[Tensor], Waitable]


class Transfer(Protocol):
    """The way of one piece of a gradient through the network, and the buffers it needs; used again every step.

    Called once per step in this order: send_norms by one thread, wait_norms and send_codes by the next one, wait_codes
    and send_sums, wait_sums and aggregate. Everything may raise TransportError or DeadlineError.
    """

    @property
    def codes(self) -> U8:
        """Where the packed codes are to be put."""

    def send_norms(self, norms: F32) -> None:
        """Start the maximum of norms, float32[B], which is copied."""

    def wait_norms(self) -> F32:
        """Return float32[B], the maximum over the workers."""

    def send_codes(self) -> None:
        """Start the sum of the table values of `codes`."""

    def wait_codes(self) -> None:
        """Wait for what send_sums() needs."""

    def send_sums(self) -> None:
        """Do this worker's share of the summing, when it has one."""

    def wait_sums(self) -> None:
        """Wait for what aggregate() needs."""

    def aggregate(self) -> tuple[U8 | U16, U8]:
        """Return the sums, one per code, and the number of workers in each chunk of Transport.codes_per_chunk codes."""


class Transport(Protocol):
    """Makes transfers; all workers make the same ones in the same order."""

    @property
    def codes_per_chunk(self) -> int | None:
        """Codes that are lost or arrive together; None: a whole piece."""

    def new_transfer(self, blocks: int, codes: int) -> Transfer:
        """Return a transfer of that many norms and codes."""

    def close(self) -> None:
        """Release sockets and threads; transfers in flight fail."""
