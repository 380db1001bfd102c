"""JobCheck: does a packet belong to a job of this switch, to its present incarnation, and to a worker of it?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from byteps_thc.wire.layout import ErrorReason, MessageType
from thc_switch.allocation import JobAllocation, norm_slots_of
from thc_switch.controls.base import Control, ip_number
from thc_switch.plan import Match, Range, TableEntry, Ternary

#: Priorities: an incarnation's slots, what else carries its epoch, superseded epochs.
_SLOTS, _MALFORMED, _STALE = 1, 2, 3
#: Keys of any message, besides job and epoch.
_ANYTHING: dict[str, Match] = {"message_type": Ternary(0, 0), "num_workers": Ternary(0, 0), "slot": Range(0, 0xFFFF)}


class JobCheck(Control):
    """`worker` holds all workers of all jobs; `job` is empty until the agent opens a job with an epoch."""

    INSTANCE = "ThcIngress.job_check"
    TABLES = ("job", "worker")

    def entries(self) -> Iterator[TableEntry]:
        """Every worker, by the address it must send from."""
        for allocation in self.allocations:
            for number in range(len(allocation.job.workers)):
                yield self.worker_entry(allocation, number)

    @classmethod
    def worker_entry(cls, allocation: JobAllocation, number: int) -> TableEntry:
        """Return the entry of one worker."""
        worker = allocation.job.workers[number]
        keys: dict[str, Match | int] = {
            "job_id": allocation.job_id,
            "worker_id": number,
            "src_ip": ip_number(worker.ip),
            "src_port": worker.udp_port,
        }
        return cls.entry("worker", keys, "known", worker_bit=1 << number, port=worker.port)

    @classmethod
    def open_entries(cls, allocation: JobAllocation, epoch: int, slots: int) -> Iterator[TableEntry]:
        """Yield the entries that let an incarnation in.

        epoch: of this incarnation. slots: how many the workers use, at most the job's.
        """
        norm_slots = norm_slots_of(slots)
        for message_type, slot in (
            (MessageType.CODES, Range(norm_slots, slots - 1)),
            (MessageType.NORM, Range(0, norm_slots - 1)),
        ):
            message: dict[str, Match] = {
                "message_type": Ternary(message_type, 0xFF),
                "num_workers": Ternary(len(allocation.job.workers), 0xFF),
                "slot": slot,
            }
            yield cls.entry(
                "job",
                {**_incarnation(allocation, epoch), **message},
                "enter",
                priority=_SLOTS,
                slot_base=allocation.first_slot,
                quorum=allocation.job.contributions,
                multicast_group=allocation.multicast_group,
            )
        yield cls.entry("job", {**_incarnation(allocation, epoch), **_ANYTHING}, "malformed", priority=_MALFORMED)

    @classmethod
    def superseded_entries(cls, allocation: JobAllocation, superseded: Sequence[int]) -> Iterator[TableEntry]:
        """Yield the entries for earlier epochs, whose packets are told STALE_EPOCH.

        Packets of any other epoch but the present one get UNKNOWN_JOB, as from thc-ps.
        """
        for epoch in dict.fromkeys(superseded):
            stale = {**_incarnation(allocation, epoch), **_ANYTHING}
            yield cls.entry("job", stale, "refuse", priority=_STALE, reason=ErrorReason.STALE_EPOCH)


def _incarnation(allocation: JobAllocation, epoch: int) -> dict[str, Match]:
    return {"job_id": Ternary(allocation.job_id, 0xFFFF), "epoch": Ternary(epoch, 0xFFFFFFFF)}
