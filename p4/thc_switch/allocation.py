"""Slots, multicast group and replication ids of every job of a switch."""

import itertools
from dataclasses import dataclass

from byteps_thc._base.errors import ConfigurationError
from thc_switch import limits
from thc_switch.description import Deployment, JobDescription


@dataclass(frozen=True)
class JobAllocation:
    """A job's share of the switch."""

    job: JobDescription
    index: int
    first_slot: int
    """of the switch; the job's slot s is the switch's first_slot + s"""

    @property
    def job_id(self) -> int:
        """The job's id on the wire."""
        return self.job.job_id

    @property
    def slots(self) -> int:
        """Slots of the job."""
        return self.job.slots

    @property
    def multicast_group(self) -> int:
        """Group of all workers."""
        return 1 + self.index

    @property
    def root_group(self) -> int:
        """Group of a leaf's root."""
        return limits.ROOT_GROUPS[self.index]

    def replication_id(self, worker: int) -> int:
        """`egress_rid` of the copy for a worker; 0 marks flooded frames."""
        return 1 + self.index * limits.MAX_WORKERS + worker

    @property
    def root_replication_id(self) -> int:
        """`egress_rid` of a leaf's packets to its root."""
        return 1 + limits.MAX_JOBS * limits.MAX_WORKERS + self.index


def norm_slots_of(slots: int) -> int:
    """Return the number of norm slots in a job, as in thc-ps: one rotation block has one norm and many codes."""
    return 1 if slots < 16 else slots // 8


def allocate(deployment: Deployment) -> tuple[JobAllocation, ...]:
    """Give every job a distinct slot range; ConfigurationError if ranges overlap or do not fit."""
    allocations: list[JobAllocation] = []
    next_slot = 0
    for index, job in enumerate(deployment.jobs):
        first_slot = next_slot if job.first_slot is None else job.first_slot
        allocations.append(JobAllocation(job, index, first_slot))
        next_slot = max(next_slot, first_slot + job.slots)
    _refuse_overlap(allocations)
    if next_slot > deployment.switch.slots:
        raise ConfigurationError(
            f"the jobs need {next_slot} slots, and {deployment.switch.pipes} pipe(s) hold {deployment.switch.slots}: "
            "give jobs fewer slots, or spread the rows over more pipes (switch.recirculation)"
        )
    return tuple(allocations)


def _refuse_overlap(allocations: list[JobAllocation]) -> None:
    ordered = sorted(allocations, key=lambda allocation: allocation.first_slot)
    for low, high in itertools.pairwise(ordered):
        if low.first_slot + low.slots > high.first_slot:
            raise ConfigurationError(
                f"jobs {low.job_id} and {high.job_id} overlap at slot {high.first_slot}: omit first_slot, or "
                f"start job {high.job_id} at {low.first_slot + low.slots}"
            )
