"""Aggregators as packet tests use them: frames in at a port, frames out at ports."""

from collections.abc import Sequence
from typing import Protocol

from switch_lab.jobs import Job
from switch_lab.reference import Limits

#: A frame and the port it leaves or enters.
PortFrame = tuple[int, bytes]


#: A switch works in passes of 128 codes and has 12 bits for the chunk (p4/README.md).
SWITCH_LIMITS = Limits(codes_multiple=1024, max_chunk=4095)


class Target(Protocol):
    """An aggregator under test, with its control plane."""

    name: str
    front_ports: tuple[int, ...]
    """Ports with a cable to a host."""

    limits: Limits
    """its requirements beyond the protocol"""

    def install(self, jobs: Sequence[Job]) -> None:
        """Start afresh, ready for the jobs' workers to join."""

    def exchange(self, port: int, frame: bytes) -> list[PortFrame]:
        """Send a frame into a front port; return every frame that leaves front ports in response."""

    def late(self) -> list[PortFrame]:
        """Return frames that leave after exchange(), because results are paced; none after a second without any."""

    def pass_time(self, seconds: float) -> None:
        """Let the control plane see that much time go by."""

    def close(self) -> None:
        """End processes and remove interfaces."""
