"""The switch's agent: answers HELLO and GOODBYE as thc-ps does (docs/protocol.md, "Joining"). No sockets, no clock.

It differs from thc-ps in this: jobs are installed by the administrator, so a HELLO must agree with the job description
and come from the address given there, and jobs do not expire; a job that every worker has left is closed until
the next HELLO. Packets of workers do not pass the agent, so it asks the switch's counters whether a worker is alive.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from byteps_thc.wire.layout import (
    UDP_PORT,
    VERSION,
    ConfigField,
    ErrorPayload,
    ErrorReason,
    Flag,
    Header,
    MessageType,
    WelcomePayload,
)
from thc_switch import frames, limits
from thc_switch.allocation import JobAllocation, allocate, norm_slots_of
from thc_switch.description import Deployment
from thc_switch.frames import Datagram
from thc_switch.hello import Hello, JobConfig, Refusal, difference, parse_hello
from thc_switch.targets.base import SwitchControl

#: A worker that was silent for this long may be replaced by another process with its id.
LIVENESS_S = 1.0

_log = logging.getLogger(__name__)


@dataclass
class _Worker:
    """A worker that said HELLO in this incarnation."""

    nonce: int
    joined: bool
    heard_s: float
    packets: int


@dataclass
class _Job:
    """A job and its present incarnation."""

    allocation: JobAllocation
    epoch: int | None = None
    """None: closed, or the switch was not told all that opens it"""
    config: JobConfig | None = None
    """of this incarnation, with what its first worker settled"""
    workers: dict[int, _Worker] = field(default_factory=dict)
    superseded: deque[int] = field(default_factory=lambda: deque(maxlen=limits.REMEMBERED_EPOCHS))

    def is_joined(self, number: int) -> bool:
        """Whether a worker said HELLO and not GOODBYE."""
        return number in self.workers and self.workers[number].joined

    @property
    def slots(self) -> int:
        """Slots the workers use."""
        asked = self.config.slots_asked if self.config else None
        return min(asked, self.allocation.slots) if asked else self.allocation.slots


class SwitchAgent:
    """Joins workers to the jobs of a deployment.

    deployment: as it is installed on `control`'s switch. new_epoch: returns 32-bit numbers, not 0, that hardly ever
    repeat. All jobs start closed, so that workers of before a restart of the agent are told UNKNOWN_JOB and say HELLO
    again, as after a restart of thc-ps.
    """

    def __init__(
        self, deployment: Deployment, control: SwitchControl, new_epoch: Callable[[], int] | None = None
    ) -> None:
        self._control = control
        self._switch = deployment.switch
        self._new_epoch = new_epoch or _random_epoch
        self._jobs = {allocation.job_id: _Job(allocation) for allocation in allocate(deployment)}
        #: frames by what became of them: joined, left, the reason of an ERROR, or why they were dropped
        self.counters: Counter[str] = Counter()
        for job in self._jobs.values():
            control.close_job(job.allocation)

    @property
    def epochs(self) -> dict[int, int | None]:
        """The epoch of every job; None: closed."""
        return {job_id: job.epoch for job_id, job in self._jobs.items()}

    def handle(self, frame: bytes, now_s: float) -> list[bytes]:
        """Take a frame from the CPU port; return the frames to send there. now_s: a clock that never goes back."""
        datagram = frames.parse(frame)
        if datagram is None or (datagram.dst_ip, datagram.dst_port) != (self._switch.ip, UDP_PORT):
            return self._drop("other")
        if len(datagram.payload) < Header.SIZE_BYTES or datagram.payload[0] != VERSION:
            return self._drop("version")
        header = Header.unpack(datagram.payload)
        if header.message_type == MessageType.HELLO:
            answer = self._handle_hello(header, datagram, now_s)
        elif header.message_type == MessageType.GOODBYE:
            self._handle_goodbye(header, datagram)
            answer = None
        else:
            return self._drop("type")
        return [] if answer is None else [frames.build(datagram.answer(answer))]

    def _drop(self, why: str) -> list[bytes]:
        self.counters[f"dropped_{why}"] += 1
        return []

    def _handle_hello(self, header: Header, datagram: Datagram, now_s: float) -> bytes | None:
        if not _is_clean(header) or header.epoch != 0 or header.slot != 0:
            self._drop("header")
            return None
        hello = parse_hello(header, datagram.payload)
        if hello is None:
            self._drop("length")
            return None
        if isinstance(hello, Refusal):
            return self._refuse(header, hello)
        job = self._jobs.get(header.job_id)
        if job is None:
            return self._refuse(header, Refusal(ErrorReason.UNKNOWN_JOB))
        if refusal := difference(hello.config, job.config or JobConfig.of_job(job.allocation.job)):
            return self._refuse(header, refusal)
        if not _is_from(datagram, job, header.worker_id):
            _log.warning("job %d: worker %d says HELLO from %s", header.job_id, header.worker_id, datagram.source)
            return self._refuse(header, Refusal(ErrorReason.BAD_CONFIG, ConfigField.WORKER_ID))
        if not self._join(job, header.worker_id, hello, now_s):
            bitmap = 1 << header.worker_id
            return self._refuse(header, Refusal(ErrorReason.DUPLICATE_WORKER, worker_bitmap=bitmap))
        self.counters["joined"] += 1
        return self._welcome(header, job)

    def _join(self, job: _Job, number: int, hello: Hello, now_s: float) -> bool:
        """Return False when another process, which lives, has this worker's number."""
        worker = job.workers.get(number)
        if worker is not None and worker.nonce != hello.nonce:
            if worker.joined and self._is_alive(job, number, worker, now_s):
                return False
            _log.info("job %d starts over: worker %d was restarted", job.allocation.job_id, number)
            self._supersede(job)
        elif job.epoch is not None and self._control.open_epoch(job.allocation) != job.epoch:
            # Tables were installed or reset anew: workers of before are told UNKNOWN_JOB, and join again.
            job.superseded.clear()
            job.epoch = None
        if job.epoch is None:
            self._open(job, hello.config)
        packets = self._control.worker_packets(job.allocation, number)
        job.workers[number] = _Worker(hello.nonce, joined=True, heard_s=now_s, packets=packets)
        return True

    def _is_alive(self, job: _Job, number: int, worker: _Worker, now_s: float) -> bool:
        packets = self._control.worker_packets(job.allocation, number)
        if packets != worker.packets:  # NORM and CODES: the HELLO that asks is not counted
            worker.heard_s = now_s
        worker.packets = packets
        return now_s - worker.heard_s < LIVENESS_S

    def _supersede(self, job: _Job) -> None:
        """End the present incarnation: its workers are told STALE_EPOCH."""
        if job.epoch is not None:
            job.superseded.append(job.epoch)
        job.epoch = None

    def _open(self, job: _Job, config: JobConfig) -> None:
        """Begin an incarnation. When the switch cannot be told, the job stays closed until the next HELLO."""
        job.workers.clear()
        job.config = job.config or config
        epoch = self._new_epoch()
        self._control.open_job(job.allocation, epoch, job.slots, tuple(job.superseded))
        job.epoch = epoch

    def _handle_goodbye(self, header: Header, datagram: Datagram) -> None:
        job = self._jobs.get(header.job_id)
        if job is None or job.config is None or header.epoch != job.epoch or not _is_clean(header):
            self._drop("header")
        elif len(datagram.payload) != Header.SIZE_BYTES:
            self._drop("length")
        elif not _agrees_with(header, job.config):
            self._drop("header")
        elif not _is_from(datagram, job, header.worker_id) or not job.is_joined(header.worker_id):
            self._drop("sender")
        else:
            self.counters["left"] += 1
            job.workers[header.worker_id].joined = False
            if not any(worker.joined for worker in job.workers.values()):
                self._control.close_job(job.allocation)
                self._jobs[header.job_id] = _Job(job.allocation)

    def _welcome(self, header: Header, job: _Job) -> bytes:
        assert job.epoch is not None
        payload = WelcomePayload(
            slots=job.slots,
            norm_slots=norm_slots_of(job.slots),
            window_bytes=self._window_bytes(),
            shards=1,
            codes_multiple=limits.CODES_PER_PACKET,
        )
        return replace(_reply_header(header, MessageType.WELCOME), epoch=job.epoch).pack() + payload.pack()

    def _window_bytes(self) -> int:
        """A worker's share of the switch's buffers, at least one packet."""
        workers = sum(len(job.allocation.job.workers) for job in self._jobs.values() if job.epoch is not None)
        return max(self._switch.buffer_bytes // workers, limits.RESULT_BYTES)

    def _refuse(self, header: Header, refusal: Refusal) -> bytes:
        self.counters[refusal.reason.name.lower()] += 1
        payload = ErrorPayload(
            worker_bitmap=refusal.worker_bitmap,
            reason=refusal.reason,
            field=refusal.field,
            job_value=refusal.job_value,
        )
        return replace(_reply_header(header, MessageType.ERROR), payload_count=0).pack() + payload.pack()


def _reply_header(request: Header, message_type: MessageType) -> Header:
    return replace(
        request, message_type=message_type, flags=0, contributions=0, switch_pass=0, switch_step=0, switch_state=0
    )


def _is_clean(header: Header) -> bool:
    """Whether fields that no packet of a worker may set are zero."""
    internal = header.switch_pass | header.switch_step | header.switch_state
    return not (header.flags & ~int(Flag.RETRANSMIT) or header.contributions or internal)


def _agrees_with(header: Header, config: JobConfig) -> bool:
    ours = (header.code_bits, header.value_bits, header.num_workers)
    return ours == (config.code_bits, config.value_bits, config.num_workers) and header.worker_id < config.num_workers


def _is_from(datagram: Datagram, job: _Job, number: int) -> bool:
    """Whether a datagram comes from where the job description has this worker."""
    worker = job.allocation.job.workers[number]
    return (datagram.src_ip, datagram.src_port) == (worker.ip, worker.udp_port)


def _random_epoch() -> int:
    return random.SystemRandom().randrange(1, 1 << 32)
