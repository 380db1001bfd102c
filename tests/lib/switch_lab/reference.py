"""An aggregator's answers, byte for byte: docs/contributors/protocol.md around thc_core's slot state machine."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from _core_test import SlotOutcome, SlotPool, SlotReply

from byteps_thc._base.wire.layout import VERSION
from switch_lab.jobs import CODES_PER_PACKET, VALUE_BITS, Endpoint, Job
from thc_switch.wire import ErrorPayload, ErrorReason, Flag, Header, MessageType

INTERNAL_FIELDS = ("switch_pass", "switch_step", "switch_state")


@dataclass(frozen=True)
class Answer:
    """reason: the counter that counts the packet, by the names of reasons.p4. replies: datagrams to whom."""

    reason: str
    replies: tuple[tuple[Endpoint, bytes], ...] = ()


@dataclass(frozen=True)
class Limits:
    """Requirements of a switch beyond the protocol. tells_last: results name the last sender, as thc-ps's do."""

    codes_multiple: int = 1
    max_chunk: int = 0xFFFF
    tells_last: bool = False


#: Names of a switch's counters by verdict of thc_core.
REASONS = {
    SlotOutcome.ABSORBED: "absorbed",
    SlotOutcome.COMPLETED: "completed",
    SlotOutcome.REPLAY: "replayed",
    SlotOutcome.INCOMPLETE: "incomplete",
    SlotOutcome.DUPLICATE: "duplicate",
    SlotOutcome.STRAGGLER: "straggler",
    SlotOutcome.ORDER_MISMATCH: "order_mismatch",
}


class Reference:
    """Aggregates for jobs whose workers have all joined."""

    def __init__(self, jobs: Iterable[Job], limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._jobs: dict[int, Job] = {}
        self._pools: dict[int, SlotPool] = {}
        self._superseded: set[tuple[int, int]] = set()
        for job in jobs:
            self.start(job)

    def start(self, job: Job) -> None:
        """Begin a job, or begin it anew with another epoch."""
        if job.job_id in self._jobs:
            self._superseded.add((job.job_id, self._jobs[job.job_id].epoch))
        self._jobs[job.job_id] = job
        self._pools[job.job_id] = SlotPool(
            job.table.array,
            bits=job.table.bits,
            slots=job.slots,
            norm_slots=job.norm_slots,
            codes_per_packet=CODES_PER_PACKET,
            workers=len(job.workers),
            quorum=job.quorum,
            value_bits=VALUE_BITS,
        )

    def handle(self, datagram: bytes, source: Endpoint) -> Answer:
        """Apply a NORM or CODES datagram."""
        if len(datagram) < Header.SIZE_BYTES or datagram[0] != VERSION:
            return Answer("malformed")
        header = Header.unpack(datagram)
        if any(getattr(header, name) != 0 for name in INTERNAL_FIELDS):
            return Answer("spoofed")
        if header.message_type not in (MessageType.NORM, MessageType.CODES) or not self._has_its_length(
            header, len(datagram)
        ):
            return Answer("malformed")
        job = self._jobs.get(header.job_id)
        if job is None or header.epoch != job.epoch:
            return self._refuse_stranger(header, source)
        if not _agrees_with(header, job):
            return Answer("malformed")
        if source not in [worker.endpoint for worker in job.workers if worker.worker_id == header.worker_id]:
            return Answer("unknown_worker")
        return self._contribute(job, header, datagram[Header.SIZE_BYTES :], source)

    def _has_its_length(self, header: Header, datagram_bytes: int) -> bool:
        count, multiple = header.payload_count, self._limits.codes_multiple
        if header.message_type == MessageType.NORM:
            multiple, payload_bytes = max(multiple * VALUE_BITS // 32, 1), 4 * count
        else:
            payload_bytes = (count * header.code_bits + 7) // 8
        if count == 0 or count % multiple != 0 or header.chunk > self._limits.max_chunk:
            return False
        return 1 <= header.code_bits <= 8 and datagram_bytes == Header.SIZE_BYTES + payload_bytes

    def _refuse_stranger(self, header: Header, source: Endpoint) -> Answer:
        stale = (header.job_id, header.epoch) in self._superseded
        reason = ErrorReason.STALE_EPOCH if stale else ErrorReason.UNKNOWN_JOB
        return Answer(reason.name.lower(), ((source, _error(header, reason)),))

    def _contribute(self, job: Job, header: Header, payload: bytes, source: Endpoint) -> Answer:
        reply = self._pools[job.job_id].contribute(
            slot=header.slot,
            round=header.round,
            worker=header.worker_id,
            retransmit=bool(header.flags & Flag.RETRANSMIT),
            partition=header.partition,
            chunk=header.chunk,
            count=header.payload_count,
            payload=payload,
        )
        reason = REASONS[reply.outcome]
        match reply.outcome:
            case SlotOutcome.COMPLETED:
                results = [(w.endpoint, self._first_result(header, reply, w.worker_id)) for w in job.workers]
                return Answer(reason, tuple(results))
            case SlotOutcome.REPLAY:
                return Answer(reason, ((source, _result(header, reply, header.worker_id)),))
            case SlotOutcome.INCOMPLETE:
                return Answer(reason, ((source, _error(header, ErrorReason.INCOMPLETE, reply.bitmap)),))
            case SlotOutcome.ORDER_MISMATCH:
                return Answer(reason, ((source, _error(header, ErrorReason.ORDER_MISMATCH)),))
            case SlotOutcome.STRAGGLER:
                return Answer(reason, ((source, _reply_header(header, MessageType.STRAGGLER).pack()),))
        return Answer(reason)

    def _first_result(self, request: Header, reply: SlotReply, addressee: int) -> bytes:
        last = self._limits.tells_last and addressee == request.worker_id
        return _result(request, reply, addressee, Flag.LAST if last else 0)


def _agrees_with(header: Header, job: Job) -> bool:
    norm = header.message_type == MessageType.NORM
    return (
        header.flags & ~int(Flag.RETRANSMIT) == 0
        and header.contributions == 0
        and header.code_bits == job.table.bits
        and header.value_bits == VALUE_BITS
        and header.num_workers == len(job.workers)
        and header.worker_id < len(job.workers)
        and header.slot < job.slots
        and norm == (header.slot < job.norm_slots)
        and header.payload_count <= (CODES_PER_PACKET * VALUE_BITS // 32 if norm else CODES_PER_PACKET)
    )


def _reply_header(request: Header, message_type: MessageType) -> Header:
    return dataclasses.replace(request, message_type=message_type, flags=0, contributions=0, payload_count=0)


def _error(request: Header, reason: ErrorReason, worker_bitmap: int = 0) -> bytes:
    header = _reply_header(request, MessageType.ERROR)
    return header.pack() + ErrorPayload(worker_bitmap=worker_bitmap, reason=reason).pack()


def _result(request: Header, reply: SlotReply, addressee: int, flags: int = 0) -> bytes:
    norm = request.message_type == MessageType.NORM
    header = dataclasses.replace(
        _reply_header(request, MessageType.MAX_NORM if norm else MessageType.AGGREGATE),
        flags=flags | (Flag.PARTIAL if reply.contributions < request.num_workers else 0),
        contributions=reply.contributions,
        payload_count=reply.count,
        worker_id=addressee,
    )
    return header.pack() + reply.result
