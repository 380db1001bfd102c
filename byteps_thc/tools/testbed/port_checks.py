"""UDP and TCP ports of a testbed's processes: nobody has another's, and none is beyond the last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import combinations
from typing import TYPE_CHECKING

from byteps_thc.tools.testbed.assignment import aggregator_nic, assign_workers
from byteps_thc.tools.testbed.description_parts import SwitchAggregator

if TYPE_CHECKING:
    from byteps_thc.tools.testbed.description import Testbed

_LAST_PORT = 65535


@dataclass(frozen=True)
class _Ports:
    """Ports in a row that a process binds. key: which says where they begin."""

    kind: str
    ip: IPv4Address | None
    first: int
    count: int
    process: str
    key: str

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def meets(self, other: _Ports) -> bool:
        same = (self.kind, self.ip) == (other.kind, other.ip)
        return same and self.first <= other.last and other.first <= self.last


def check_ports(testbed: Testbed) -> None:
    """ValueError for ports that two processes want, and for such as there are not."""
    everything = [*_udp_ports(testbed), *_tcp_ports(testbed)]
    for ports in everything:
        if ports.last > _LAST_PORT:
            raise ValueError(
                f"{ports.key}: {ports.process} needs {ports.count} ports from {ports.first} on, and the last "
                f"is {_LAST_PORT}; choose a lower one"
            )
    for one, other in combinations(everything, 2):
        if one.meets(other):
            first, last = max(one.first, other.first), min(one.last, other.last)
            which = f"port {first}" if first == last else f"ports {first} to {last}"
            keys = one.key if one.key == other.key else f"{one.key} or {other.key}"
            raise ValueError(
                f"{one.key}: {one.process} and {other.process} both have {one.kind} {which} of {one.ip}; change {keys}"
            )


def _udp_ports(testbed: Testbed) -> Iterator[_Ports]:
    each = testbed.lanes * testbed.transport.polling_threads
    for worker in assign_workers(testbed):
        yield _Ports("UDP", worker.nic.ip, worker.udp_port, each, f"worker {worker.number}", "job.udp_port")
    aggregator = testbed.aggregator
    if not isinstance(aggregator, SwitchAggregator):
        for host in testbed.aggregator_hosts:
            ip, name = aggregator_nic(testbed, host).ip, f"thc-ps on {host.name}"
            yield _Ports("UDP", ip, aggregator.port, testbed.server_threads, name, "aggregator.port")


def _tcp_ports(testbed: Testbed) -> Iterator[_Ports]:
    aggregator, coordinator = testbed.aggregator, testbed.coordinator
    launcher = "torchrun" if testbed.training.launcher == "torchrun" else "BytePS's scheduler"
    yield _Ports("TCP", coordinator.management_ip, testbed.training.port, 1, launcher, "training.port")
    if not isinstance(aggregator, SwitchAggregator) and aggregator.metrics_port:
        for host in testbed.aggregator_hosts:
            name = f"thc-ps on {host.name}"
            yield _Ports("TCP", host.management_ip, aggregator.metrics_port, 1, name, "aggregator.metrics_port")
