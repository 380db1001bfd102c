"""What the agent knows of a job and its present incarnation."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from byteps_thc.wire.layout import Header
from thc_switch import limits
from thc_switch.allocation import JobAllocation
from thc_switch.frames import Datagram
from thc_switch.hello import JobConfig
from thc_switch.root_link import RootLink


@dataclass
class JoinedWorker:
    """A worker that said HELLO in this incarnation."""

    nonce: int
    joined: bool
    heard_s: float
    packets: int


@dataclass
class AgentJob:
    """A job and its present incarnation."""

    allocation: JobAllocation
    link: RootLink | None
    """of a leaf, to the root"""
    epoch: int | None = None
    """None: closed, or the switch was not told all that opens it"""
    config: JobConfig | None = None
    """of this incarnation, with what its first worker settled"""
    workers: dict[int, JoinedWorker] = field(default_factory=dict)
    superseded: deque[int] = field(default_factory=lambda: deque(maxlen=limits.REMEMBERED_EPOCHS))
    waiting: dict[int, tuple[Header, Datagram]] = field(default_factory=dict)
    """HELLOs of a leaf's workers, by worker, that are answered when the root has answered"""

    def is_joined(self, number: int) -> bool:
        """Whether a worker said HELLO and not GOODBYE."""
        return number in self.workers and self.workers[number].joined

    @property
    def slots(self) -> int:
        """Slots the workers use."""
        if self.link is not None and self.link.welcome is not None:
            return self.link.welcome.slots
        asked = self.config.slots_asked if self.config else None
        return min(asked, self.allocation.slots) if asked else self.allocation.slots

    def settled(self, now_s: float) -> JobConfig:
        """What a worker's HELLO must agree with."""
        said = self.config or (self.link.settled(now_s) if self.link is not None else None)
        return said or JobConfig.of_job(self.allocation.job)

    def is_from(self, datagram: Datagram, number: int) -> bool:
        """Whether a datagram comes from where the job description has this worker."""
        worker = self.allocation.job.numbered_workers.get(number)
        return worker is not None and (datagram.src_ip, datagram.src_port) == (worker.ip, worker.udp_port)
