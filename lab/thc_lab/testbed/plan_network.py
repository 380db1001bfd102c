"""Namespaces as hosts: which cables connect them, and the bridges in between."""

from collections.abc import Iterator

from thc_lab.namespaces import Cable, CableEnd
from thc_lab.testbed.description import (
    PREFIX_LENGTH,
    Testbed,
    interface_of,
    mac_from,
    mac_of,
    management_interface_of,
)
from thc_lab.testbed.process import PlannedHost
from thc_lab.testbed.sections import Dpdk, SwitchAggregator, Udp
from thc_lab.testbed.switch import AGENT_INTERFACE, CPU_INTERFACE, port_interface

#: Namespaces of bridges: for data without a switch, and for everything else.
FABRIC, MANAGEMENT = "fabric", "management"


def namespaces_of(testbed: Testbed, python: str) -> tuple[PlannedHost, ...]:
    """The namespaces that a testbed needs beside its hosts."""
    names = [MANAGEMENT] if isinstance(testbed.aggregator, SwitchAggregator) else [MANAGEMENT, FABRIC]
    return tuple(PlannedHost(name, python=python) for name in names)


def cables_of(testbed: Testbed) -> tuple[Cable, ...]:
    """All veth pairs."""
    return (*_management_cables(testbed), *_data_cables(testbed), *_cpu_cables(testbed))


def _management_cables(testbed: Testbed) -> Iterator[Cable]:
    for number, host in enumerate(testbed.hosts):
        if host.management_ip is None:
            continue
        address = f"{host.management_ip}/{PREFIX_LENGTH}"
        yield Cable(
            CableEnd(host.name, management_interface_of(host), mac_from(host.management_ip), address),
            CableEnd(MANAGEMENT, f"port{number}", f"02:01:00:00:00:{number:02x}"),
            offloads=True,
        )


def _data_cables(testbed: Testbed) -> Iterator[Cable]:
    by_dpdk = isinstance(testbed.transport, Dpdk)
    mtu_bytes = testbed.transport.mtu_bytes if isinstance(testbed.transport, Udp) else 1500
    aggregator = testbed.aggregator
    number = 0
    for host in testbed.hosts:
        for nic in host.nics:
            if isinstance(aggregator, SwitchAggregator):
                far = CableEnd(aggregator.host, port_interface(nic.switch_port), f"02:02:00:00:00:{number:02x}")
            else:
                far = CableEnd(FABRIC, f"port{number}", f"02:02:00:00:00:{number:02x}")
            address = "" if by_dpdk else f"{nic.ip}/{PREFIX_LENGTH}"
            near = CableEnd(host.name, interface_of(host, nic), mac_of(nic), address)
            yield Cable(near, far, mtu_bytes=mtu_bytes)
            number += 1


def _cpu_cables(testbed: Testbed) -> Iterator[Cable]:
    """bmv2's agent is at the other end of a cable; in the model it is a function."""
    aggregator = testbed.aggregator
    if isinstance(aggregator, SwitchAggregator) and aggregator.runner == "bmv2":
        yield Cable(
            CableEnd(aggregator.host, AGENT_INTERFACE, "02:03:00:00:00:01"),
            CableEnd(aggregator.host, CPU_INTERFACE, "02:03:00:00:00:00"),
        )
