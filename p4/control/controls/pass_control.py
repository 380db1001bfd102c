"""PassControl: which row of the registers a pass works on, and through which pipe the packet goes next."""

from __future__ import annotations

from collections.abc import Iterator

from p4.control import limits
from p4.control.controls.base import Control
from p4.control.plan import TableEntry

#: `pass` of a packet that is not in its blocks: it is checked, or its result is sent, in the home pipe.
HOME_PASS = 0


class PassControl(Control):
    """Passes 1 .. 8 go round the pipes in a ring so that the last one is in the home pipe, which counts and answers."""

    INSTANCE = "ThcIngress.pass_control"
    TABLES = ("row", "recirculation")

    def entries(self) -> Iterator[TableEntry]:
        """One row and one port per pass."""
        passes = range(1, limits.PASSES + 1)
        for number in passes:
            yield self.entry("row", {"pass_number": number}, "set_row", row_base=self.row_base(number))
        for number in (HOME_PASS, *passes):
            yield self.entry("recirculation", {"pass_number": number}, "recirculate_to", port=self.port(number))

    def row_base(self, number: int) -> int:
        """Return the first register element of a pass's row: each pipe has 8 / pipes rows, one after the other."""
        rows_per_pipe = limits.PASSES // self.switch.pipes
        local_row = (number - 1) // self.switch.pipes
        return local_row * (limits.REGISTER_WORDS // rows_per_pipe)

    def port(self, number: int) -> int:
        """Return the recirculation port of the pipe that does a pass."""
        if number == HOME_PASS:
            return self.switch.home_port
        return self.switch.recirculation[(limits.PASSES - number) % self.switch.pipes].port
