"""A testbed's whole description, and its consequences: the workers, their NICs, ports and racks."""

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Annotated, Literal

from pydantic import Field

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.wire.layout import SWITCH_CODES_PER_PACKET, VALUE_BITS
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_lab.testbed.sections import (
    Dpdk,
    HostDescription,
    HostName,
    JobSettings,
    Nic,
    PlainPath,
    Racks,
    Section,
    SwitchAggregator,
    ThcPs,
    Training,
    Udp,
)

#: Prefix of the data network in namespaces, and of DPDK's ends, without a gateway.
PREFIX_LENGTH = 24
#: A leaf sends sums of so many bits to the root, as a worker sends codes.
_PARTIAL_SUM_BITS = 8
_LARGEST_SUM = (1 << _PARTIAL_SUM_BITS) - 1


class Testbed(Section):
    """A training with its servers, switch and hosts."""

    __test__ = False  # for pytest: no test, in spite of its name

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$")]
    reach: Literal["namespaces", "hosts"]
    """namespaces: every host is a namespace of this machine; hosts: real ones, whose processes people start"""
    bin: PlainPath | None = None
    """folder of thc, thc-ps, bpslaunch and python3 on every host; None: on PATH, in namespaces this process's own"""
    hosts: Annotated[tuple[HostDescription, ...], Field(min_length=1)]
    aggregator: Annotated[ThcPs | Racks | SwitchAggregator, Field(discriminator="kind")]
    transport: Annotated[Udp | Dpdk, Field(discriminator="kind")]
    job: JobSettings = JobSettings()
    training: Training

    @property
    def worker_hosts(self) -> tuple[HostDescription, ...]:
        """Hosts with workers, in the order of the workers' numbers: as described, or rack by rack."""
        hosts = tuple(host for host in self.hosts if host.workers)
        if not isinstance(self.aggregator, Racks):
            return hosts
        order = [name for rack in self.aggregator.racks for name in rack.hosts]
        return tuple(sorted(hosts, key=lambda host: order.index(host.name) if host.name in order else len(order)))

    @property
    def workers(self) -> int:
        """Workers of all hosts; with torchrun ranks."""
        return sum(host.workers for host in self.hosts)

    @property
    def lanes(self) -> int:
        """Jobs of the training on the aggregator: lanes of BytePS, with the default put in."""
        if self.training.launcher == "torchrun":
            return 1
        return self.job.lanes or (1 if isinstance(self.transport, Dpdk) else 2)

    @property
    def coordinator(self) -> HostDescription:
        """Host of BytePS's scheduler and servers, or of rank 0."""
        return self.host(self.training.coordinator or self.worker_hosts[0].name)

    @property
    def aggregator_hosts(self) -> tuple[HostDescription, ...]:
        """Hosts of thc-ps, the root first; none for a switch."""
        if isinstance(self.aggregator, SwitchAggregator):
            return ()
        if isinstance(self.aggregator, Racks):
            return tuple(map(self.host, (self.aggregator.root, *(rack.leaf for rack in self.aggregator.racks))))
        if self.aggregator.kind == "colocated":
            return self.worker_hosts
        return tuple(self.host(name) for name in self.aggregator.hosts)

    def host(self, name: HostName) -> HostDescription:
        """Return a host by its name."""
        return next(host for host in self.hosts if host.name == name)


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

    With racks, torchrun's coordinator is in the first one, so that each rack has consecutive workers.
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
                    udp_port=testbed.job.udp_port + sharing * testbed.lanes,
                    gpus=tuple(range(local * gpus_each, (local + 1) * gpus_each)),
                )
            )
    return tuple(assigned)


def worker_nic(testbed: Testbed, host: HostDescription, local: int) -> Nic:
    """Return the NIC of a worker: its own if each has one, else the first."""
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


@dataclass(frozen=True)
class PlacedRack:
    """A rack with its workers, as they are numbered in the job."""

    number: int
    leaf: HostDescription
    first_worker: int
    workers: int

    @property
    def range(self) -> str:
        """FIRST-LAST, as --racks of thc-ps takes it."""
        return f"{self.first_worker}-{self.first_worker + self.workers - 1}"

    def has(self, worker: int) -> bool:
        """Whether the worker of that number is in it."""
        return self.first_worker <= worker < self.first_worker + self.workers


def racks_of(testbed: Testbed, aggregator: Racks) -> tuple[PlacedRack, ...]:
    """All racks, in their order."""
    placed: list[PlacedRack] = []
    first = 0
    for number, rack in enumerate(aggregator.racks):
        workers = sum(testbed.host(name).workers for name in rack.hosts)
        placed.append(PlacedRack(number, testbed.host(rack.leaf), first, workers))
        first += workers
    return tuple(placed)


def config_of(testbed: Testbed) -> ServerCodes:
    """The job's settings; with a switch its packets; with racks, the largest granularity with which a rack's sums fit,
    where a larger was chosen.

    Raises ConfigurationError, with the change to make, if none fits.
    """
    config, aggregator = testbed.job.thc, testbed.aggregator
    if isinstance(aggregator, SwitchAggregator) and config.codes_per_packet == "auto":
        # Workers would find out by a refusal.
        return config.model_copy(update={"codes_per_packet": SWITCH_CODES_PER_PACKET})
    if not isinstance(aggregator, Racks):
        return config
    racks = racks_of(testbed, aggregator)
    largest = max(rack.workers for rack in racks)
    resolved = config.resolve(testbed.workers)
    granularity, total = resolved.table.granularity, (1 << resolved.value_bits) - 1
    # The root treats every rack as the largest.
    limit = min(_LARGEST_SUM // largest, total // (largest * len(racks)))
    if granularity <= limit:
        return config
    what = f"{len(racks)} racks of up to {largest} workers: their sums of {_PARTIAL_SUM_BITS} bits, and the root's of "
    what += f"{resolved.value_bits}, hold granularity {limit}"
    smallest = (1 << config.bits) - 1
    if limit < smallest:
        raise ConfigurationError(
            f"{what}, and {config.bits}-bit codes have {smallest} or more: make racks of "
            f"{_LARGEST_SUM // smallest} workers at most, all of one size, or bits smaller"
        )
    if config.granularity != "auto":
        raise ConfigurationError(
            f"{what}, not {granularity}: use that or less, or racks that are smaller and of one size"
            + (", or value_bits 16" if resolved.value_bits < max(VALUE_BITS) else "")
        )
    return config.model_copy(update={"granularity": limit})
