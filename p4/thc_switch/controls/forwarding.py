"""Forwarding: everything that is not for the aggregator is bridged or routed."""

from __future__ import annotations

from collections.abc import Iterator

from thc_switch.controls.base import Control, ip_number, mac_number
from thc_switch.plan import DefaultAction, Lpm, MulticastGroup, TableEntry


class Forwarding(Control):
    """Static stations and routes; frames to unknown stations are flooded to all ports that are known."""

    INSTANCE = "ThcIngress.forwarding"
    TABLES = ("ipv4_route", "mac_forward")

    def entries(self) -> Iterator[TableEntry]:
        """Routes, the router itself, then stations: workers, roots and other hosts."""
        router = mac_number(self.switch.mac)
        for route in self.switch.routes:
            prefix = Lpm(ip_number(route.prefix.network_address), route.prefix.prefixlen)
            next_hop = mac_number(route.next_hop_mac)
            yield self.entry(
                "ipv4_route", {"dst_ip": prefix}, "route", dst_mac=next_hop, src_mac=router, port=route.port
            )
        yield self.entry("mac_forward", {"dst_mac": router}, "to_router")
        for mac, port in sorted(self._stations().items()):
            yield self.entry("mac_forward", {"dst_mac": mac_number(mac)}, "forward", port=port)

    def defaults(self) -> Iterator[DefaultAction]:
        """Flood."""
        yield self.default("mac_forward", "flood", multicast_group=self.switch.flood_group)

    def groups(self) -> Iterator[MulticastGroup]:
        """All ports that are known, once each; egress drops the copy to where the frame came from."""
        ports = set(self._stations().values())
        ports |= {route.port for route in self.switch.routes} | {entry.number for entry in self.switch.ports}
        yield MulticastGroup(self.switch.flood_group, tuple((port, 0) for port in sorted(ports)))

    def _stations(self) -> dict[str, int]:
        jobs = self.deployment.jobs
        workers = {worker.mac: worker.port for job in jobs for worker in job.workers}
        roots = {job.upstream.mac: job.upstream.port for job in jobs if job.upstream is not None}
        return {station.mac: station.port for station in self.switch.stations} | workers | roots
