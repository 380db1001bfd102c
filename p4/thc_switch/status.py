"""A switch's counters and registers of its jobs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from thc_switch.allocation import JobAllocation
from thc_switch.controls import SlotCheck
from thc_switch.programs import INCLUDE_FOLDER
from thc_switch.targets.base import SwitchControl

_REASONS_SOURCE = INCLUDE_FOLDER / "reasons.p4"
_CONSTANT = re.compile(r"^const bit<8> REASON_(\w+) = (\d+);", re.MULTILINE)


@dataclass(frozen=True)
class JobStatus:
    """One job."""

    job_id: int
    epoch: int | None
    """None: closed, no worker joined"""
    slots: int
    slots_used: int
    """slots with a round since the job was opened"""
    packets: int
    """packets of NORM and CODES accepted by the slot check, ever"""


@dataclass(frozen=True)
class SwitchStatus:
    """All jobs, and packets by outcome."""

    jobs: tuple[JobStatus, ...]
    reasons: dict[str, int]


def read_status(control: SwitchControl, allocations: Sequence[JobAllocation]) -> SwitchStatus:
    """Read the counters of a switch."""
    jobs = tuple(_job_status(control, allocation) for allocation in allocations)
    counts = control.read_counter("ThcIngress.reasons", 0, 1 + max(reasons().values()))
    return SwitchStatus(jobs, {name: counts[index] for name, index in reasons().items()})


def _job_status(control: SwitchControl, allocation: JobAllocation) -> JobStatus:
    first, slots = allocation.first_slot, allocation.slots
    rounds = control.read_register(SlotCheck.full_name("highest_round"), first, slots)
    packets = control.read_counter(SlotCheck.full_name("slot_packets"), first, slots)
    return JobStatus(
        job_id=allocation.job_id,
        epoch=control.open_epoch(allocation),
        slots=slots,
        slots_used=sum(round_number != 0 for round_number in rounds),
        packets=sum(packets),
    )


@cache
def reasons() -> dict[str, int]:
    """Return reasons of dropped packets by name: elements of the counter `reasons`, from reasons.p4, without `none`."""
    found = {name.lower(): int(index) for name, index in _CONSTANT.findall(_REASONS_SOURCE.read_text())}
    del found["none"]
    return found
