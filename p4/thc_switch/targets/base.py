"""What every way to talk to a switch can do."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from thc_switch.allocation import JobAllocation
from thc_switch.controls import JobCheck, Leaf, SlotCheck
from thc_switch.plan import ALL_SECTIONS, Operation, Plan, RemoveEntries, Section


class SwitchControl(ABC):
    """A switch that runs one of the P4 programs. TransportError when it cannot be reached or refuses.

    Names are those of Plan; what a target needs besides (prefixes, handles) is its own business.
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
        """Return the epoch whose packets are let in; None when the job is closed."""

    @abstractmethod
    def worker_packets(self, allocation: JobAllocation, worker: int) -> int:
        """Return how many packets of a worker the switch took, ever."""

    def install(self, plan: Plan, sections: Collection[Section] = ALL_SECTIONS) -> None:
        """Install a plan; jobs that ran are closed."""
        self.apply(plan.operations(sections))

    def open_job(
        self,
        allocation: JobAllocation,
        epoch: int,
        slots: int,
        superseded: Sequence[int] = (),
        root_epoch: int | None = None,
    ) -> None:
        """Forget all rounds of the job, and let packets of an incarnation in. root_epoch: of a leaf's job at its root.

        Letting them in is the last step: when one before it fails, the job is not open. Packets of the incarnation
        before are refused, and those that are between two passes gone, by the time its rounds are cleared.
        """
        self.close_job(allocation, superseded)
        time.sleep(self.IN_FLIGHT_S)
        self.apply(SlotCheck.clear_job(allocation))
        if root_epoch is not None:
            self.apply(Leaf.open_entries(allocation, epoch, root_epoch))
            self.apply(JobCheck.root_entries(allocation, root_epoch))
        self.apply(JobCheck.open_entries(allocation, epoch, slots))

    def close_job(self, allocation: JobAllocation, superseded: Sequence[int] = ()) -> None:
        """Refuse all packets of a job: STALE_EPOCH for those of superseded epochs, otherwise UNKNOWN_JOB."""
        tables = [JobCheck.full_name("job")]
        if allocation.job.upstream is not None:
            tables.append(Leaf.full_name("leaf"))
        self.apply([RemoveEntries(table, "job_id", allocation.job_id) for table in tables])
        self.apply(JobCheck.superseded_entries(allocation, superseded))
