"""PortRole: where a packet came from decides what is done with it."""

from __future__ import annotations

from collections.abc import Iterator

from p4.control.controls.base import Control
from p4.control.plan import TableEntry


class PortRole(Control):
    """Front-panel ports of the home pipe need no entry: `front` is the default."""

    INSTANCE = "ThcIngress.port_role"
    TABLES = ("port_role",)

    def entries(self) -> Iterator[TableEntry]:
        """The CPU's port, recirculation ports, and front-panel ports of other pipes."""
        yield self.entry("port_role", {"ingress_port": self.switch.cpu_port}, "cpu")
        for recirculation in self.switch.recirculation:
            yield self.entry("port_role", {"ingress_port": recirculation.port}, "recirculation")
        home_pipe = self.switch.pipe_of(self.switch.home_port)
        for port in self._front_ports():
            if self.switch.pipe_of(port) != home_pipe:
                yield self.entry("port_role", {"ingress_port": port}, "front_of_other_pipe", port=self.switch.home_port)

    def _front_ports(self) -> list[int]:
        workers = {worker.port for job in self.deployment.jobs for worker in job.workers}
        others = {station.port for station in self.switch.stations} | {route.port for route in self.switch.routes}
        return sorted(workers | others | {entry.number for entry in self.switch.ports})
