"""SlotCheck: the state of every slot's two versions, in registers; its tables have constant entries."""

from __future__ import annotations

from collections.abc import Iterator

from thc_switch import limits
from thc_switch.allocation import JobAllocation
from thc_switch.controls.base import Control
from thc_switch.plan import ClearRegister


class SlotCheck(Control):
    """Only `highest_round` and `slot_use` must start at zero: what they call fresh is overwritten everywhere else."""

    INSTANCE = "ThcIngress.slot_check"

    def registers(self) -> Iterator[ClearRegister]:
        """All slots of the switch."""
        yield ClearRegister(self.full_name("highest_round"))
        yield ClearRegister(self.full_name("slot_use"))

    @classmethod
    def clear_job(cls, allocation: JobAllocation) -> tuple[ClearRegister, ...]:
        """Return what forgets all rounds of one job."""
        first, slots, versions = allocation.first_slot, allocation.slots, limits.VERSIONS_PER_SLOT
        return (
            ClearRegister(cls.full_name("highest_round"), first, slots),
            ClearRegister(cls.full_name("slot_use"), versions * first, versions * slots),
        )
