"""PassRow: which row of the registers a pass works on."""

from __future__ import annotations

from collections.abc import Iterator

from thc_switch import limits
from thc_switch.controls.base import Control
from thc_switch.plan import TableEntry


class PassRow(Control):
    """Each pipe has 8 / pipes rows, one after the other in its registers."""

    INSTANCE = "ThcIngress.pass_row"
    TABLES = ("row",)

    def entries(self) -> Iterator[TableEntry]:
        """One row for each pass; the same in all pipes, because a pass is always done by the same one."""
        for number in range(1, limits.PASSES + 1):
            yield self.entry("row", {"pass_number": number}, "set_row", row_base=self.row_base(number))

    def row_base(self, number: int) -> int:
        """Return the first register element of a pass's row."""
        rows_per_pipe = limits.PASSES // self.switch.pipes
        local_row = (number - 1) // self.switch.pipes
        return local_row * (limits.REGISTER_WORDS // rows_per_pipe)
