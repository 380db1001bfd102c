"""How the sections of a description have to fit together. Each check raises ValueError with the key to change."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from itertools import combinations

from byteps_thc._base.wire.layout import MAX_WORKERS
from thc_lab.testbed.aggregator_checks import check_aggregator
from thc_lab.testbed.description import (
    PREFIX_LENGTH,
    Testbed,
    aggregator_nic,
    assign_workers,
    interface_of,
    management_interface_of,
)
from thc_lab.testbed.plan_network import FABRIC, MANAGEMENT
from thc_lab.testbed.sections import Dpdk, Nic, Racks, SwitchAggregator, ThcPs
from thc_switch.description_types import refuse_repeated

#: Variables that the plan gives, so that they agree.
PLANNED_PREFIXES = ("DMLC_", "THC_")
#: Prefixes of variables that are settings of the training.
FREE_VARIABLES = (
    "THC_LOG_EVERY",
    "THC_POLICY",
    "THC_RUN",
    "DMLC_ENABLE_RDMA",
)
#: Variables that shells run, or find programs by.
SHELL_VARIABLES = ("BASHOPTS", "BASH_ENV", "ENV", "IFS", "PATH", "PROMPT_COMMAND", "PS4", "SHELLOPTS")
#: Variables of BytePS's launcher, which puts some into a command for a shell.
_LAUNCHER_PREFIXES = ("BYTEPS_", "DMLC_")
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.,:/=+@%-]*")
#: Names of namespaces that a plan adds.
RESERVED_NAMES = (FABRIC, MANAGEMENT)
_LAST_PORT = 65535


def check(testbed: Testbed) -> None:
    """ValueError with the first mistake."""
    _check_hosts(testbed)
    _check_names(testbed)
    _check_addresses(testbed)
    _check_training(testbed)
    check_aggregator(testbed)
    _check_ports(testbed)
    if isinstance(testbed.transport, Dpdk):
        _check_dpdk(testbed, testbed.transport)
    _check_uses(testbed)


def _check_hosts(testbed: Testbed) -> None:
    refuse_repeated("hosts: name", (host.name for host in testbed.hosts))
    for number, host in enumerate(testbed.hosts):
        where = f"hosts.{number} ({host.name})"
        if testbed.reach == "namespaces" and host.name in RESERVED_NAMES:
            raise ValueError(f"{where}: the testbed has a namespace {host.name} of its own; choose another name")
        if host.workers and not host.nics:
            raise ValueError(f"{where}: it has workers, so give it [[hosts.nics]] with its address in the data network")
        if host.workers and not host.management_ip:
            raise ValueError(f"{where}: give management_ip, which {testbed.training.launcher} meets the others at")
        if host.gpus and host.workers and host.gpus % host.workers:
            raise ValueError(f"{where}: {host.gpus} gpus cannot be shared out among {host.workers} workers equally")
    if not testbed.workers:
        raise ValueError("hosts: no host has workers; give some of them workers = 1")


def _check_names(testbed: Testbed) -> None:
    """Every name is a host's."""
    names = [host.name for host in testbed.hosts]
    for key, name in _named_hosts(testbed):
        if name not in names:
            raise ValueError(f"{key}: {name} is not a host; hosts are {', '.join(names)}")


def _check_uses(testbed: Testbed) -> None:
    """Every host has something to do."""
    used = {name for _, name in _named_hosts(testbed)}
    for number, host in enumerate(testbed.hosts):
        if not host.workers and host.name not in used:
            raise ValueError(
                f"hosts.{number} ({host.name}): no part of the description uses it; give it workers, or omit it"
            )


def _named_hosts(testbed: Testbed) -> Iterator[tuple[str, str]]:
    """Keys that name hosts, with the names."""
    if testbed.training.coordinator is not None:
        yield "training.coordinator", testbed.training.coordinator
    match testbed.aggregator:
        case SwitchAggregator(host=host):
            yield "aggregator.host", host
        case Racks(root=root, racks=racks):
            yield "aggregator.root", root
            for number, rack in enumerate(racks):
                yield f"aggregator.racks.{number}.leaf", rack.leaf
                yield from ((f"aggregator.racks.{number}.hosts", name) for name in rack.hosts)
        case ThcPs(hosts=hosts):
            yield from (("aggregator.hosts", name) for name in hosts)


def _check_addresses(testbed: Testbed) -> None:
    nics = [(host, nic) for host in testbed.hosts for nic in host.nics]
    management = [host.management_ip for host in testbed.hosts if host.management_ip]
    service = [testbed.aggregator.switch.ip] if isinstance(testbed.aggregator, SwitchAggregator) else []
    refuse_repeated("hosts: the address", (*(nic.ip for _, nic in nics), *management, *service))
    refuse_repeated("hosts: mac", (nic.mac for _, nic in nics if nic.mac))
    refuse_repeated("hosts: switch_port", (nic.switch_port for _, nic in nics if nic.switch_port is not None))
    for host in testbed.hosts:
        refuse_repeated(f"nics of {host.name}: interface", (nic.interface for nic in host.nics if nic.interface))
        refuse_repeated(f"nics of {host.name}: pci_address", (nic.pci_address for nic in host.nics if nic.pci_address))
    if testbed.reach == "namespaces":
        for host in testbed.hosts:
            # Interfaces that every namespace has, or that a plan makes.
            made = ["lo", *([management_interface_of(host)] if host.management_ip else [])]
            names = (interface_of(host, nic) for nic in host.nics)
            refuse_repeated(f"nics of {host.name}: interface", (*made, *names))
        _require_one_network("hosts: management_ip", management)
    if testbed.reach == "namespaces" or isinstance(testbed.transport, Dpdk):
        _require_one_network("hosts: ip of nics", [*(nic.ip for _, nic in nics), *service])


def _check_training(testbed: Testbed) -> None:
    if testbed.workers > MAX_WORKERS:
        raise ValueError(f"hosts: {testbed.workers} workers; a job takes {MAX_WORKERS}")
    for name, value in testbed.training.environment.items():
        _check_variable(name, value)
    if testbed.training.launcher == "torchrun":
        if len({host.workers for host in testbed.worker_hosts}) > 1:
            raise ValueError("hosts: workers: torchrun starts as many ranks on every host; give all the same number")
        if (testbed.job.lanes or 1) > 1:
            raise ValueError("job.lanes: lanes is a setting of BytePS alone; omit it with torchrun")
    if testbed.job.quorum is not None and testbed.job.quorum > testbed.workers:
        raise ValueError(f"job.quorum: {testbed.job.quorum} of {testbed.workers} workers; at most all of them")
    if testbed.coordinator.management_ip is None:
        raise ValueError(f"training.coordinator: {testbed.coordinator.name} has no management_ip; give it one")
    if testbed.training.launcher == "torchrun" and not testbed.coordinator.workers:
        raise ValueError("training.coordinator: with torchrun it has rank 0, so it needs workers")


def _check_variable(name: str, value: str) -> None:
    """The value may be a secret: no error has it."""
    where = f"training.environment: {name}"
    if name.startswith(PLANNED_PREFIXES) and name not in FREE_VARIABLES:
        raise ValueError(f"{where} follows from other sections; omit it")
    if name in SHELL_VARIABLES:
        raise ValueError(f"{where} changes the commands of shells; omit it, and set it in a script that command names")
    if name.startswith(_LAUNCHER_PREFIXES) and not _PLAIN_VALUE.fullmatch(value):
        raise ValueError(f"{where} is read by bpslaunch, which has a shell: letters, digits and _.,:/=+@%- only")


def _check_dpdk(testbed: Testbed, dpdk: Dpdk) -> None:
    if testbed.lanes > 1:
        raise ValueError(f"job.lanes: {testbed.lanes} lanes cannot share a DPDK device; omit it")
    if testbed.reach == "namespaces" and dpdk.driver != "af_packet":
        raise ValueError('transport.driver: namespaces have virtual interfaces only: "af_packet"')
    if dpdk.driver != "af_packet" and not dpdk.hugepages:
        raise ValueError(f"transport.hugepages: {dpdk.driver} needs huge pages; omit it")
    for number, host in enumerate(testbed.hosts):
        needed = host.workers + (host in testbed.aggregator_hosts)
        where = f"hosts.{number} ({host.name})"
        if testbed.training.launcher == "torchrun" and host.workers > 1:
            raise ValueError(f"{where}: one rank of torchrun has the NIC of DPDK; workers = 1")
        if len(host.nics) < needed:
            raise ValueError(f"{where}: {needed} processes need a NIC of DPDK each, and it has {len(host.nics)}")
        for nic in host.nics:
            _check_device(testbed, dpdk, where, nic)


def _check_device(testbed: Testbed, dpdk: Dpdk, where: str, nic: Nic) -> None:
    if dpdk.driver != "af_packet" and nic.pci_address is None:
        raise ValueError(f"{where}: NIC {nic.ip}: give pci_address, the device that {dpdk.driver} takes")
    if dpdk.driver == "af_packet" and testbed.reach == "hosts" and nic.interface is None:
        raise ValueError(f"{where}: NIC {nic.ip}: give interface, which af_packet opens")


def _require_one_network(key: str, addresses: Iterable[object]) -> None:
    networks = {IPv4Network(f"{address}/{PREFIX_LENGTH}", strict=False) for address in addresses}
    if len(networks) > 1:
        names = " and ".join(str(network) for network in sorted(networks)[:2])
        raise ValueError(f"{key}: all of a testbed are in one /{PREFIX_LENGTH} network here, not in {names}")


@dataclass(frozen=True)
class _Ports:
    """Ports in a row that a process binds. key: the setting of the first port."""

    kind: str
    ip: IPv4Address | None
    first: int
    count: int
    process: str
    key: str

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def meets(self, other: "_Ports") -> bool:
        same = (self.kind, self.ip) == (other.kind, other.ip)
        return same and self.first <= other.last and other.first <= self.last


def _check_ports(testbed: Testbed) -> None:
    """Raise ValueError for ports that two processes want, and for impossible ones."""
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
    for worker in assign_workers(testbed):
        yield _Ports("UDP", worker.nic.ip, worker.udp_port, testbed.lanes, f"worker {worker.number}", "job.udp_port")
    aggregator = testbed.aggregator
    if not isinstance(aggregator, SwitchAggregator):
        for host in testbed.aggregator_hosts:
            ip, name = aggregator_nic(testbed, host).ip, f"thc-ps on {host.name}"
            yield _Ports("UDP", ip, aggregator.port, 1, name, "aggregator.port")


def _tcp_ports(testbed: Testbed) -> Iterator[_Ports]:
    aggregator, coordinator = testbed.aggregator, testbed.coordinator
    launcher = "torchrun" if testbed.training.launcher == "torchrun" else "BytePS's scheduler"
    yield _Ports("TCP", coordinator.management_ip, testbed.training.port, 1, launcher, "training.port")
    if not isinstance(aggregator, SwitchAggregator) and aggregator.metrics_port:
        for host in testbed.aggregator_hosts:
            name = f"thc-ps on {host.name}"
            yield _Ports("TCP", host.management_ip, aggregator.metrics_port, 1, name, "aggregator.metrics_port")
