"""Who is where: the workers of a testbed with their NICs, ports and GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from byteps_thc.tools.testbed.description_parts import Dpdk, HostDescription, Nic

if TYPE_CHECKING:
    from byteps_thc.tools.testbed.description import Testbed


@dataclass(frozen=True)
class Worker:
    """One worker of the job: a bpslaunch, or a rank of torchrun."""

    #: its id in the job
    number: int
    host: HostDescription
    #: which of the host's workers it is
    local: int
    nic: Nic
    #: of its first lane
    udp_port: int
    gpus: tuple[int, ...]

    @property
    def address(self) -> str:
        """IP:PORT that it binds."""
        return f"{self.nic.ip}:{self.udp_port}"


def assign_workers(testbed: Testbed) -> tuple[Worker, ...]:
    """Number the workers in the order of their hosts; torchrun's rank 0 is the coordinator's.

    With racks, the coordinator of torchrun is in the first one, so that each has workers in a row.
    """
    assigned: list[Worker] = []
    hosts = testbed.worker_hosts
    if testbed.training.launcher == "torchrun":
        hosts = tuple(sorted(hosts, key=lambda host: host is not testbed.coordinator))
    for host in hosts:
        for local in range(host.workers):
            nic = worker_nic(testbed, host, local)
            sharing = sum(1 for other in assigned if other.nic is nic)
            gpus_each = host.gpus // host.workers
            assigned.append(
                Worker(
                    number=len(assigned),
                    host=host,
                    local=local,
                    nic=nic,
                    udp_port=testbed.job.udp_port + sharing * testbed.lanes * testbed.transport.polling_threads,
                    gpus=tuple(range(local * gpus_each, (local + 1) * gpus_each)),
                )
            )
    return tuple(assigned)


def worker_nic(testbed: Testbed, host: HostDescription, local: int) -> Nic:
    """Return the NIC of a worker: its own where there is one for each, else the first."""
    own = len(host.nics) >= host.workers and testbed.training.launcher == "bpslaunch"
    return host.nics[local if own else 0]


def aggregator_nic(testbed: Testbed, host: HostDescription) -> Nic:
    """Return the NIC of thc-ps on a host; a colocated one cannot share a device of DPDK with a worker."""
    colocated = bool(host.workers) and isinstance(testbed.transport, Dpdk)
    return host.nics[-1 if colocated else 0]


def mac_of(nic: Nic) -> str:
    """Return the MAC address of a NIC; in namespaces made of its IP address where none is described."""
    return nic.mac or mac_from(nic.ip)


def mac_from(ip: IPv4Address) -> str:
    """Return a locally administered MAC address that has the IP address in it."""
    return "02:00:" + ":".join(f"{byte:02x}" for byte in ip.packed)


def management_interface_of(host: HostDescription) -> str:
    """Return the kernel's name of a namespace's interface in the management network."""
    return host.management_interface or "manage0"


def interface_of(host: HostDescription, nic: Nic) -> str:
    """Return the kernel's name of a NIC, with the default of namespaces."""
    return nic.interface or f"data{host.nics.index(nic)}"
