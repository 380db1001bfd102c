"""Service: packets for the aggregator's own address."""

from __future__ import annotations

from collections.abc import Iterator

from byteps_thc._scheme.wire.layout import UDP_PORT
from thc_switch.controls.base import Control, ip_number, mac_number
from thc_switch.plan import DefaultAction, TableEntry


class Service(Control):
    """The service address, its ARP answers, and the way to the agent."""

    INSTANCE = "ThcIngress.service"
    TABLES = ("service", "arp_responder")

    def entries(self) -> Iterator[TableEntry]:
        """One service address."""
        ip, mac = ip_number(self.switch.ip), mac_number(self.switch.mac)
        yield self.entry("service", {"dst_ip": ip, "dst_port": UDP_PORT}, "accept", mac=mac)
        yield self.entry("arp_responder", {"target_ip": ip}, "reply", mac=mac)

    def defaults(self) -> Iterator[DefaultAction]:
        """HELLO and GOODBYE go to the agent."""
        yield self.default("message", "to_cpu", port=self.switch.cpu_port)
