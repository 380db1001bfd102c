"""A switch in a network namespace and its workers in theirs, with one cable to each, all on this host."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from byteps_thc.tools.demo.namespaces import Namespaces, Plug
from byteps_thc.wire.layout import UDP_PORT

_FIRST_WORKER_UDP_PORT = 49000


@dataclass(frozen=True)
class Site:
    """One switch with the network 10.77.<number>.0/24. Worker w is at its port 1 + w."""

    number: int
    #: namespace of the switch and its agent
    switch: str
    #: namespaces of the workers, which may have cables to other switches as well
    workers: tuple[str, ...]

    @property
    def switch_ip(self) -> str:
        """Service address of the switch."""
        return f"10.77.{self.number}.254"

    @property
    def switch_mac(self) -> str:
        """MAC address of the switch."""
        return f"02:00:00:02:{self.number:02x}:00"

    @property
    def server(self) -> str:
        """IP:PORT that workers name as their server."""
        return f"{self.switch_ip}:{UDP_PORT}"

    def worker_ip(self, worker: int) -> str:
        """Address of a worker at this switch."""
        return f"10.77.{self.number}.{1 + worker}"

    def worker_mac(self, worker: int) -> str:
        """MAC address of a worker's end of its cable."""
        return f"02:00:00:00:{self.number:02x}:{1 + worker:02x}"

    def worker_udp_port(self, worker: int) -> int:
        """UDP port the worker binds."""
        return _FIRST_WORKER_UDP_PORT + worker

    def worker_local(self, worker: int) -> str:
        """IP:PORT the worker binds."""
        return f"{self.worker_ip(worker)}:{self.worker_udp_port(worker)}"

    @property
    def worker_interface(self) -> str:
        """Name of a worker's interface, the same for all."""
        return f"eth{self.number}"

    def switch_port(self, worker: int) -> int:
        """Port of the switch that a worker is at."""
        return 1 + worker

    def switch_interface(self, worker: int) -> str:
        """Name of the switch's interface to a worker."""
        return f"port{self.switch_port(worker)}"

    @property
    def cpu_interface(self) -> str:
        """Name of the switch's interface to its agent."""
        return "cpu"

    @property
    def agent_interface(self) -> str:
        """Name of the agent's interface to the switch."""
        return "agent"

    def connect(self, namespaces: Namespaces, dpdk_workers: Collection[int] = ()) -> None:
        """Lay the cables. The kernel gets no address where DPDK is to answer for it."""
        namespaces.connect(
            Plug(self.switch, self.cpu_interface, f"02:00:00:03:{self.number:02x}:00"),
            Plug(self.switch, self.agent_interface, f"02:00:00:03:{self.number:02x}:01"),
        )
        for worker, home in enumerate(self.workers):
            address = "" if worker in dpdk_workers else f"{self.worker_ip(worker)}/24"
            namespaces.connect(
                Plug(home, self.worker_interface, self.worker_mac(worker), address),
                Plug(self.switch, self.switch_interface(worker), f"02:00:00:01:{self.number:02x}:{1 + worker:02x}"),
            )
