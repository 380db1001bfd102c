"""The agent's state of a job and its present incarnation."""

from collections import deque
from dataclasses import dataclass, field, replace

from byteps_thc._base.wire.layout import PATIENCE_MS, PROBE_INTERVAL_MS, PROBES, SILENCE_MS
from thc_switch import limits
from thc_switch.allocation import JobAllocation
from thc_switch.frames import Datagram
from thc_switch.hello import JobConfig
from thc_switch.root_link import RootLink
from thc_switch.wire import Flag, Header, MessageType

#: Three quarters of thc-ps's interval: without a clock, a PROBE waits for the next HELLO, which comes that often.
_PROBE_INTERVAL_S = 0.75e-3 * PROBE_INTERVAL_MS


@dataclass
class JoinedWorker:
    """A worker that said HELLO in this incarnation."""

    nonce: int
    joined: bool
    heard_s: float
    packets: int
    _probed_s: float = float("-inf")
    _asked_s: float = 0.0
    _unanswered: int = 0

    def take_due_probe(self, now_s: float) -> bool:
        """Whether to send a PROBE now. Call it for each HELLO that wants the worker's job."""
        if now_s - self._probed_s < _PROBE_INTERVAL_S:
            return False
        if self.heard_s > self._asked_s or now_s - self._probed_s > PATIENCE_MS / 1e3:
            self._unanswered, self._asked_s = 0, now_s
        self._unanswered, self._probed_s = self._unanswered + 1, now_s
        return True

    def is_silent(self, now_s: float) -> bool:
        """Whether enough PROBEs got no answer."""
        is_late = self._unanswered >= PROBES and now_s - self._asked_s >= SILENCE_MS / 1e3
        return is_late and self.heard_s <= self._asked_s and now_s - self._probed_s <= PATIENCE_MS / 1e3


@dataclass
class AgentJob:
    """A job and its present incarnation."""

    allocation: JobAllocation
    link: RootLink | None
    """of a leaf, to the root"""
    epoch: int | None = None
    """None: closed, or the switch was not told everything that opens it"""
    config: JobConfig | None = None
    """of this incarnation, with its first worker's choices"""
    run: int = 0
    """of the joined workers"""
    workers: dict[int, JoinedWorker] = field(default_factory=dict)
    superseded: deque[int] = field(default_factory=lambda: deque(maxlen=limits.REMEMBERED_EPOCHS))
    waiting: dict[int, tuple[Header, Datagram]] = field(default_factory=dict)
    """HELLOs of a leaf's workers, by worker, that wait for the root's answer"""

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
        """Return the configuration that a worker's HELLO must match."""
        said = self.config or (self.link.settled(now_s) if self.link is not None else None)
        return said or JobConfig.of_job(self.allocation.job)

    def due_probes(self, now_s: float) -> list[Header]:
        """Return the PROBEs to send now, to workers whose job another training wants."""
        if self.epoch is None or self.config is None:
            return []
        probe = Header(
            message_type=MessageType.PROBE,
            code_bits=self.config.code_bits,
            value_bits=self.config.value_bits,
            num_workers=self.config.num_workers,
            job_id=self.allocation.job_id,
            epoch=self.epoch,
        )
        joined = [(number, worker) for number, worker in self.workers.items() if worker.joined]
        return [replace(probe, worker_id=number) for number, worker in joined if worker.take_due_probe(now_s)]

    def why_no_notice(self, header: Header, datagram: Datagram) -> str | None:
        """Return why a GOODBYE or ALIVE is dropped; None: it is sound, and from a joined worker."""
        if self.config is None or header.epoch != self.epoch or not is_clean(header):
            return "header"
        if len(datagram.payload) != Header.SIZE_BYTES:
            return "length"
        ours = (header.code_bits, header.value_bits, header.num_workers)
        agrees = ours == (self.config.code_bits, self.config.value_bits, self.config.num_workers)
        if not agrees or header.worker_id >= self.config.num_workers:
            return "header"
        if not self.is_from(datagram, header.worker_id) or not self.is_joined(header.worker_id):
            return "sender"
        return None

    def is_from(self, datagram: Datagram, number: int) -> bool:
        """Whether a datagram has this worker's address in the job description."""
        worker = self.allocation.job.numbered_workers.get(number)
        return worker is not None and (datagram.src_ip, datagram.src_port) == (worker.ip, worker.udp_port)


def is_clean(header: Header) -> bool:
    """Whether fields that workers' packets never set are zero."""
    internal = header.switch_pass | header.switch_step | header.switch_state
    return not (header.flags & ~int(Flag.RETRANSMIT) or header.contributions or internal)
