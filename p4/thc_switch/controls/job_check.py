"""JobCheck: whether a packet belongs to a job of this switch, its present incarnation, and one of its workers."""

from collections.abc import Iterator, Sequence

from thc_switch.allocation import JobAllocation, allocate, norm_slots_of
from thc_switch.controls.base import Contents, Control
from thc_switch.description import Deployment, Peer
from thc_switch.plan import Match, Range, TableEntry, Ternary
from thc_switch.wire import ErrorReason, MessageType

#: A root's messages that the data plane forwards.
FROM_ROOT = (MessageType.AGGREGATE, MessageType.MAX_NORM, MessageType.STRAGGLER, MessageType.ERROR)

#: Priorities: an incarnation's slots, other messages of its epoch, superseded epochs.
_SLOTS, _MALFORMED, _STALE = 1, 2, 3
#: Keys of any message, besides job and epoch.
_ANYTHING: dict[str, Match] = {"message_type": Ternary(0, 0), "num_workers": Ternary(0, 0), "slot": Range(0, 0xFFFF)}


class JobCheck(Control):
    """`worker` holds all workers of all jobs; `job` is empty until the agent opens a job with an epoch."""

    INSTANCE = "ThcIngress.job_check"
    TABLES = ("job", "worker")

    @classmethod
    def contents(cls, deployment: Deployment) -> Iterator[Contents]:
        """Yield every worker with its source address, and a leaf's root, which answers to "worker `rack`"."""
        for allocation in allocate(deployment):
            for number in allocation.job.numbered_workers:
                yield cls.worker_entry(allocation, number)
            if (root := allocation.job.upstream) is not None:
                yield cls.entry("worker", _sender(allocation, root.rack, root), "root")

    @classmethod
    def worker_entry(cls, allocation: JobAllocation, number: int) -> TableEntry:
        """Return the entry of one worker."""
        worker, upstream = allocation.job.numbered_workers[number], allocation.job.upstream
        keys = _sender(allocation, number, worker)
        other_racks = 0 if upstream is None else upstream.other_racks
        return cls.entry("worker", keys, "known", worker_bit=1 << number, other_racks=other_racks, port=worker.port)

    @classmethod
    def open_entries(cls, allocation: JobAllocation, epoch: int, slots: int) -> Iterator[TableEntry]:
        """Yield the entries that admit an incarnation.

        epoch: of this incarnation. slots: number that the workers use, at most the job's.
        """
        norm_slots, upstream = norm_slots_of(slots), allocation.job.upstream
        for message_type, slot in (
            (MessageType.CODES, Range(norm_slots, slots - 1)),
            (MessageType.NORM, Range(0, norm_slots - 1)),
        ):
            message: dict[str, Match] = {
                "message_type": Ternary(message_type, 0xFF),
                "num_workers": Ternary(allocation.job.num_workers, 0xFF),
                "slot": slot,
            }
            yield cls.entry(
                "job",
                {**_incarnation(allocation, epoch), **message},
                "enter",
                priority=_SLOTS,
                slot_base=allocation.first_slot,
                quorum=allocation.job.contributions,
                multicast_group=allocation.multicast_group if upstream is None else allocation.root_group,
            )
        yield cls.entry("job", {**_incarnation(allocation, epoch), **_ANYTHING}, "malformed", priority=_MALFORMED)

    @classmethod
    def root_entries(cls, allocation: JobAllocation, epoch: int) -> Iterator[TableEntry]:
        """Yield the entries that admit the root's answers. epoch: of the job at the root."""
        upstream = allocation.job.upstream
        assert upstream is not None
        racks = Ternary(len(upstream.ranges), 0xFF)
        for message_type in FROM_ROOT:
            message: dict[str, Match] = {"message_type": Ternary(message_type, 0xFF), "num_workers": racks}
            yield cls.entry(
                "job",
                {**_incarnation(allocation, epoch), **_ANYTHING, **message},
                "enter_from_root",
                priority=_SLOTS,
                multicast_group=allocation.multicast_group,
            )

    @classmethod
    def superseded_entries(cls, allocation: JobAllocation, superseded: Sequence[int]) -> Iterator[TableEntry]:
        """Yield the entries for earlier epochs, whose packets get STALE_EPOCH.

        Packets of unknown epochs get UNKNOWN_JOB, as from thc-ps.
        """
        for epoch in dict.fromkeys(superseded):
            stale = {**_incarnation(allocation, epoch), **_ANYTHING}
            yield cls.entry("job", stale, "refuse", priority=_STALE, reason=ErrorReason.STALE_EPOCH)


def _sender(allocation: JobAllocation, number: int, peer: Peer) -> dict[str, Match | int]:
    address = {"src_ip": int(peer.ip), "src_port": peer.udp_port}
    return {"job_id": allocation.job_id, "worker_id": number, **address}


def _incarnation(allocation: JobAllocation, epoch: int) -> dict[str, Match]:
    return {"job_id": Ternary(allocation.job_id, 0xFFFF), "epoch": Ternary(epoch, 0xFFFFFFFF)}
