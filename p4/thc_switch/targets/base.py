"""The interface of all targets."""

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from thc_switch.allocation import JobAllocation
from thc_switch.controls import JobCheck, Leaf, SlotCheck
from thc_switch.plan import ALL_SECTIONS, Operation, Plan, RemoveEntries, Section


class SwitchControl(ABC):
    """A switch that runs one of the P4 programs. Raises TransportError if it is unreachable or refuses.

    Names are Plan's; targets add their prefixes and handles themselves.
    """

    #: longest time from one pass of a packet to the next, its queue included
    IN_FLIGHT_S: ClassVar[float]

    @abstractmethod
    def apply(self, operations: Iterable[Operation]) -> None:
        """Do the operations in order."""

    @abstractmethod
    def read_counter(self, name: str, first: int, count: int) -> list[int]:
        """Return the packets counted in `count` elements of a counter from `first`."""

    @abstractmethod
    def read_register(self, name: str, first: int, count: int) -> list[int]:
        """Return `count` elements of a register of plain words from `first`: the largest of all pipes."""

    @abstractmethod
    def open_epoch(self, allocation: JobAllocation) -> int | None:
        """Return the epoch of admitted packets; None if the job is closed."""

    @abstractmethod
    def worker_packets(self, allocation: JobAllocation, worker: int) -> int:
        """Return the number of a worker's packets that the switch has accepted, ever."""

    def install(self, plan: Plan, sections: Collection[Section] = ALL_SECTIONS) -> None:
        """Install a plan; running jobs are closed."""
        self.apply(plan.operations(sections))

    def open_job(
        self,
        allocation: JobAllocation,
        epoch: int,
        slots: int,
        superseded: Sequence[int] = (),
        root_epoch: int | None = None,
    ) -> None:
        """Forget all rounds of the job, and admit packets of an incarnation. root_epoch: of a leaf's job at its root.

        Admission is the last step: after an earlier failure the job is closed. By the time rounds are cleared, packets
        of the last incarnation are refused, and its packets between two passes are gone.
        """
        self.close_job(allocation, superseded)
        time.sleep(self.IN_FLIGHT_S)
        self.apply(SlotCheck.clear_job(allocation))
        if root_epoch is not None:
            self.apply(Leaf.open_entries(allocation, epoch, root_epoch))
            self.apply(JobCheck.root_entries(allocation, root_epoch))
        self.apply(JobCheck.open_entries(allocation, epoch, slots))

    def close_job(self, allocation: JobAllocation, superseded: Sequence[int] = ()) -> None:
        """Refuse all packets of a job: STALE_EPOCH for superseded epochs, otherwise UNKNOWN_JOB."""
        tables = [JobCheck.full_name("job")]
        if allocation.job.upstream is not None:
            tables.append(Leaf.full_name("leaf"))
        self.apply([RemoveEntries(table, "job_id", allocation.job_id) for table in tables])
        self.apply(JobCheck.superseded_entries(allocation, superseded))
