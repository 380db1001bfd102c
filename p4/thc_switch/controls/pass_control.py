"""PassControl: through which pipe a packet goes next."""

from __future__ import annotations

from collections.abc import Iterator

from thc_switch import limits
from thc_switch.controls.base import Control
from thc_switch.plan import TableEntry

#: Of a packet that is not in its blocks: it is checked, or its result is sent, in the home pipe.
HOME_PASS = 0


class PassControl(Control):
    """Passes 1 .. 8 go round the pipes in a ring so that the last one is in the home pipe, which counts and answers."""

    INSTANCE = "ThcIngress.pass_control"
    TABLES = ("recirculation",)

    def entries(self) -> Iterator[TableEntry]:
        """One port for each pass."""
        for number in (HOME_PASS, *range(1, limits.PASSES + 1)):
            yield self.entry("recirculation", {"pass_number": number}, "recirculate_to", port=self.port(number))

    def port(self, number: int) -> int:
        """Return the recirculation port of the pipe that does a pass."""
        if number == HOME_PASS:
            return self.switch.home_port
        return self.switch.recirculation[(limits.PASSES - number) % self.switch.pipes].port
