"""PortRole: where a packet came from decides what is done with it."""

from __future__ import annotations

from collections.abc import Iterator

from thc_switch import limits
from thc_switch.controls.base import Control
from thc_switch.plan import TableEntry


class PortRole(Control):
    """Ports of the home pipe need no entry, named or not: `front` is the default.

    All ports of other pipes have one, because `front` there would meet the slots of that pipe, which no one keeps.
    """

    INSTANCE = "ThcIngress.port_role"
    TABLES = ("port_role",)

    def entries(self) -> Iterator[TableEntry]:
        """The CPU's port, recirculation ports, and all others outside the home pipe."""
        yield self.entry("port_role", {"ingress_port": self.switch.cpu_port}, "cpu")
        for recirculation in self.switch.recirculation:
            yield self.entry("port_role", {"ingress_port": recirculation.port}, "recirculation")
        home_pipe = self.switch.pipe_of(self.switch.home_port)
        for port in range(limits.MAX_PORT + 1):
            if self.switch.pipe_of(port) != home_pipe and port not in self.switch.internal_ports:
                yield self.entry("port_role", {"ingress_port": port}, "front_of_other_pipe", port=self.switch.home_port)
