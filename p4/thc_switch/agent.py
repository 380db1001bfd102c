"""The switch's agent: answers HELLO and GOODBYE as thc-ps does (protocol.md, "Joining"). No sockets, no clock.

Differences from thc-ps: the administrator installs jobs, so a HELLO must agree with the job description and come from
its address, and jobs do not expire. A job that every worker has left is closed until the next HELLO. Packets of workers
do not pass the agent, so it reads the switch's counters to see whether a worker is alive. Before it gives a job to
another training, it asks the workers themselves (PROBE).
"""

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from byteps_thc._base.wire.layout import SILENCE_MS, UDP_PORT, VERSION
from thc_switch import frames, limits
from thc_switch.agent_job import AgentJob, JoinedWorker, is_clean
from thc_switch.allocation import JobAllocation, allocate, norm_slots_of
from thc_switch.description import Deployment
from thc_switch.frames import Datagram
from thc_switch.hello import Hello, JobConfig, Refusal, difference, parse_hello
from thc_switch.root_link import RootLink
from thc_switch.targets.base import SwitchControl
from thc_switch.wire import ConfigField, ErrorPayload, ErrorReason, Header, MessageType, WelcomePayload

_log = logging.getLogger(__name__)


class SwitchAgent:
    """Joins workers to the jobs of a deployment.

    deployment: as installed on `control`'s switch. new_epoch: returns 32-bit numbers, not 0, that hardly ever repeat.
    All jobs start closed: after a restart of the agent, workers get UNKNOWN_JOB and say HELLO again, as with thc-ps.
    """

    def __init__(
        self, deployment: Deployment, control: SwitchControl, new_epoch: Callable[[], int] | None = None
    ) -> None:
        self._control = control
        self._switch = deployment.switch
        self._new_epoch = new_epoch or _random_epoch
        self._jobs = {allocation.job_id: self._new_job(allocation) for allocation in allocate(deployment)}
        #: frames by outcome: joined, left, the reason of an ERROR, or why they were dropped
        self.counters: Counter[str] = Counter()
        for job in self._jobs.values():
            control.close_job(job.allocation)

    @property
    def epochs(self) -> dict[int, int | None]:
        """The epoch of every job; None: closed."""
        return {job_id: job.epoch for job_id, job in self._jobs.items()}

    def handle(self, frame: bytes, now_s: float) -> list[bytes]:
        """Handle a frame from the CPU port; return the frames to send there. now_s: of a monotonic clock."""
        datagram = frames.parse(frame)
        if datagram is None or (datagram.dst_ip, datagram.dst_port) != (self._switch.ip, UDP_PORT):
            return self._drop("other")
        if len(datagram.payload) < Header.SIZE_BYTES or datagram.payload[0] != VERSION:
            return self._drop("version")
        header = Header.unpack(datagram.payload)
        if header.message_type == MessageType.HELLO:
            return self._handle_hello(header, datagram, now_s)
        if header.message_type in (MessageType.GOODBYE, MessageType.ALIVE):
            return self._handle_notice(header, datagram, now_s)
        job = self._jobs.get(header.job_id)
        if job is None or job.link is None or not job.link.is_from_root(datagram):
            return self._drop("type")
        return self._handle_root(job, job.link, header, datagram.payload[Header.SIZE_BYTES :], now_s)

    def _drop(self, why: str) -> list[bytes]:
        self.counters[f"dropped_{why}"] += 1
        return []

    def _handle_hello(self, header: Header, datagram: Datagram, now_s: float) -> list[bytes]:
        if not is_clean(header) or header.epoch != 0 or header.slot != 0:
            return self._drop("header")
        hello = parse_hello(header, datagram.payload)
        if hello is None:
            return self._drop("length")
        if isinstance(hello, Refusal):
            return self._refuse(header, datagram, hello)
        job = self._jobs.get(header.job_id)
        if job is None:
            return self._refuse(header, datagram, Refusal(ErrorReason.UNKNOWN_JOB))
        if job.is_from(datagram, header.worker_id) and not self._makes_way(job, hello.run, now_s):
            probes = [self._to_worker(job, probe.worker_id, probe.pack()) for probe in job.due_probes(now_s)]
            return self._refuse(header, datagram, Refusal(ErrorReason.OTHER_TRAINING)) + probes
        if refusal := difference(hello.config, job.settled(now_s)):
            return self._refuse(header, datagram, refusal)
        if not job.is_from(datagram, header.worker_id):
            _log.warning("job %d: worker %d says HELLO from %s", header.job_id, header.worker_id, datagram.source)
            return self._refuse(header, datagram, Refusal(ErrorReason.BAD_CONFIG, ConfigField.WORKER_ID))
        if self._is_duplicate(job, header.worker_id, hello, now_s):
            bitmap = 1 << header.worker_id
            return self._refuse(header, datagram, Refusal(ErrorReason.DUPLICATE_WORKER, worker_bitmap=bitmap))
        self._end_what_is_over(job, header.worker_id, hello)
        if job.link is not None and job.link.welcome is None:
            job.waiting[header.worker_id] = (header, datagram)
            sent = job.link.ask(hello.config, hello.run, now_s)
            if job.link.is_silent:  # the reason in the error at the worker's deadline
                sent += self._refuse(header, datagram, Refusal(ErrorReason.RACKS_INCOMPLETE, job_value=job.link.racks))
            return sent
        self._join(job, header.worker_id, hello, now_s)
        return [frames.build(datagram.answer(self._welcome(header, job)))]

    def _makes_way(self, job: AgentJob, run: int, now_s: float) -> bool:
        """Whether a HELLO's run may have the job: its own, or one whose workers are all gone, which ends here."""
        joined = {number: worker for number, worker in job.workers.items() if worker.joined}
        if joined and run != job.run:
            for number, worker in joined.items():
                self._note_packets(job, number, worker, now_s)
            if not all(worker.is_silent(now_s) for worker in joined.values()):
                return False
            _log.info("job %d starts over: it was another training's, whose workers are gone", job.allocation.job_id)
            self._supersede(job)
        if job.link is None or job.link.is_of(run):
            return True
        if job.link.is_taken(run, now_s):
            return False
        job.link = self._new_link(job.allocation)
        job.waiting.clear()
        return True

    def _to_worker(self, job: AgentJob, number: int, payload: bytes) -> bytes:
        station = job.allocation.job.numbered_workers[number]
        return frames.build(frames.to_station(self._switch, station, payload))

    def _is_duplicate(self, job: AgentJob, number: int, hello: Hello, now_s: float) -> bool:
        """Whether another, living process has this worker's number."""
        worker = job.workers.get(number)
        if worker is None or worker.nonce == hello.nonce:
            return False
        return worker.joined and self._is_alive(job, number, worker, now_s)

    def _end_what_is_over(self, job: AgentJob, number: int, hello: Hello) -> None:
        """End the incarnation if a HELLO, from no duplicate, cannot join it."""
        worker = job.workers.get(number)
        if worker is not None and worker.nonce != hello.nonce:
            _log.info("job %d starts over: worker %d was restarted", job.allocation.job_id, number)
            self._supersede(job)
        elif job.epoch is not None and self._control.open_epoch(job.allocation) != job.epoch:
            # Tables were installed or reset anew: old workers get UNKNOWN_JOB, and join again.
            job.superseded.clear()
            self._start_over(job)

    def _join(self, job: AgentJob, number: int, hello: Hello, now_s: float) -> None:
        if job.epoch is None:
            self._open(job, hello.config)
        if not any(worker.joined for worker in job.workers.values()):
            job.run = hello.run
        packets = self._control.worker_packets(job.allocation, number)
        job.workers[number] = JoinedWorker(hello.nonce, joined=True, heard_s=now_s, packets=packets)
        self.counters["joined"] += 1

    def _is_alive(self, job: AgentJob, number: int, worker: JoinedWorker, now_s: float) -> bool:
        self._note_packets(job, number, worker, now_s)
        return now_s - worker.heard_s < SILENCE_MS / 1e3

    def _note_packets(self, job: AgentJob, number: int, worker: JoinedWorker, now_s: float) -> None:
        packets = self._control.worker_packets(job.allocation, number)
        if packets != worker.packets:  # NORM and CODES: the current HELLO is not counted
            worker.heard_s = now_s
        worker.packets = packets

    def _supersede(self, job: AgentJob) -> None:
        """End the present incarnation: its workers get STALE_EPOCH."""
        if job.epoch is not None and job.epoch not in job.superseded:
            job.superseded.append(job.epoch)
        self._start_over(job)

    def _start_over(self, job: AgentJob) -> None:
        """Forget the joined workers. A leaf is closed, and joins the root as a new process: its rounds begin anew.

        The root gets no GOODBYE, after which it would hold the leaf until other racks have their last results. It
        admits the new process once the old one does not answer PROBE.
        """
        if job.link is not None:  # no old packets may go up while the root has not answered
            self._control.close_job(job.allocation, tuple(job.superseded))
            job.link = self._new_link(job.allocation)
        job.epoch = None
        job.workers.clear()
        job.config = None

    def _open(self, job: AgentJob, config: JobConfig) -> None:
        """Begin an incarnation. If the switch cannot be told, the job stays closed until the next HELLO."""
        job.config = job.config or config
        root_epoch = job.link.epoch if job.link is not None and job.link.welcome is not None else None
        while (epoch := self._new_epoch()) == root_epoch:
            pass  # a leaf distinguishes the two directions by their epochs
        self._control.open_job(job.allocation, epoch, job.slots, tuple(job.superseded), root_epoch)
        job.epoch = epoch

    def _handle_notice(self, header: Header, datagram: Datagram, now_s: float) -> list[bytes]:
        job = self._jobs.get(header.job_id)
        if job is None:
            return self._drop("header")
        if why := job.why_no_notice(header, datagram):
            return self._drop(why)
        worker = job.workers[header.worker_id]
        if header.message_type == MessageType.ALIVE:
            worker.heard_s = now_s
            return []
        self.counters["left"] += 1
        worker.joined = False
        return [] if any(other.joined for other in job.workers.values()) else self._end(job)

    def _end(self, job: AgentJob) -> list[bytes]:
        """Close a job until the next HELLO; return the frames for the root."""
        self._control.close_job(job.allocation)
        self._jobs[job.allocation.job_id] = self._new_job(job.allocation)
        return [] if job.link is None else job.link.goodbye()

    def _new_job(self, allocation: JobAllocation) -> AgentJob:
        return AgentJob(allocation, self._new_link(allocation))

    def _new_link(self, allocation: JobAllocation) -> RootLink | None:
        if allocation.job.upstream is None:
            return None
        return RootLink(allocation, self._switch, _random_nonce())

    def _handle_root(self, job: AgentJob, link: RootLink, header: Header, payload: bytes, now_s: float) -> list[bytes]:
        answer: list[bytes] | None = None
        if header.message_type == MessageType.CHALLENGE:
            answer = link.take_challenge(header, payload)
        elif header.message_type == MessageType.PROBE:
            answer = link.answer_probe(header)
        elif header.message_type == MessageType.WELCOME:
            refusal = link.take_welcome(header, payload)
            if link.is_of_incarnation(header):
                answer = self._answer_waiting(job, refusal, now_s)
        elif header.message_type == MessageType.ERROR and len(payload) == ErrorPayload.SIZE_BYTES:
            answer = self._take_root_error(job, link, header, ErrorPayload.unpack(payload), now_s)
        return self._drop("root") if answer is None else answer

    def _answer_waiting(self, job: AgentJob, refusal: Refusal | None, now_s: float) -> list[bytes]:
        """Pass the root's answer to the waiting workers."""
        waiting, job.waiting = job.waiting, {}
        if refusal is None:
            return [frame for hello in waiting.values() for frame in self._handle_hello(*hello, now_s)]
        answers = []
        for number, hello in waiting.items():
            bitmap = 1 << number if refusal.reason is ErrorReason.DUPLICATE_WORKER else 0
            answers += self._refuse(*hello, replace(refusal, worker_bitmap=bitmap))
        assert job.link is not None
        answers += job.link.goodbye()
        job.link = self._new_link(job.allocation)  # the job is closed, and still tells old workers so
        return answers

    def _take_root_error(
        self, job: AgentJob, link: RootLink, header: Header, error: ErrorPayload, now_s: float
    ) -> list[bytes] | None:
        if header.epoch == 0:
            refusal = link.take_refusal(header, error, now_s)
            return None if refusal is None else self._answer_waiting(job, refusal, now_s)
        if not link.is_of_incarnation(header) or job.epoch is None:
            return None
        if error.reason == ErrorReason.ORDER_MISMATCH:
            return self._tell_workers(job, header, error)
        _log.warning("%s: its job is gone (reason %d), so this one ends", link.name, error.reason)
        if error.reason == ErrorReason.STALE_EPOCH:  # other racks have other processes now
            self._supersede(job)
            return []
        self._end(job)
        return []

    def _tell_workers(self, job: AgentJob, header: Header, error: ErrorPayload) -> list[bytes]:
        """Return a root's error about a slot for all workers of the rack."""
        assert job.config is not None
        assert job.epoch is not None
        common = replace(
            _reply_header(header, MessageType.ERROR),
            code_bits=job.config.code_bits,
            num_workers=job.config.num_workers,
            epoch=job.epoch,
        )
        datagrams = {number: replace(common, worker_id=number).pack() + error.pack() for number in job.workers}
        return [self._to_worker(job, number, payload) for number, payload in datagrams.items() if job.is_joined(number)]

    def _welcome(self, header: Header, job: AgentJob) -> bytes:
        assert job.epoch is not None
        payload = WelcomePayload(
            slots=job.slots,
            norm_slots=norm_slots_of(job.slots),
            window_bytes=self._window_bytes(job),
            shards=1,
            codes_multiple=limits.CODES_PER_PACKET,
        )
        return replace(_reply_header(header, MessageType.WELCOME), epoch=job.epoch).pack() + payload.pack()

    def _window_bytes(self, job: AgentJob) -> int:
        """Return a worker's share of the switch's buffers, and of a leaf's window at the root; at least one packet.

        Workers count the bytes of their codes. In front of the root each code is a sum, of more bits.
        """
        workers = sum(len(job.allocation.job.workers) for job in self._jobs.values() if job.epoch is not None)
        share = self._switch.buffer_bytes // workers
        if job.link is not None and job.link.welcome is not None:
            share = min(share, job.link.welcome.window_bytes * limits.CODE_BITS // limits.VALUE_BITS)
        return max(share, limits.RESULT_BYTES)

    def _refuse(self, header: Header, datagram: Datagram, refusal: Refusal) -> list[bytes]:
        self.counters[refusal.reason.name.lower()] += 1
        payload = ErrorPayload(
            worker_bitmap=refusal.worker_bitmap,
            reason=refusal.reason,
            field=refusal.field,
            job_value=refusal.job_value,
        )
        answer = replace(_reply_header(header, MessageType.ERROR), payload_count=0).pack() + payload.pack()
        return [frames.build(datagram.answer(answer))]


def _reply_header(request: Header, message_type: MessageType) -> Header:
    return replace(
        request, message_type=message_type, flags=0, contributions=0, switch_pass=0, switch_step=0, switch_state=0
    )


def _random_nonce() -> int:
    return random.SystemRandom().randrange(1, 1 << 64)


def _random_epoch() -> int:
    return random.SystemRandom().randrange(1, 1 << 32)
