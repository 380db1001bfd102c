"""What hosts that are reached over ssh need before a run: huge pages, drivers, MTU. All of it is undone."""

from __future__ import annotations

from collections.abc import Iterator

from thc_lab.testbed.description import Testbed
from thc_lab.testbed.host_scripts import (
    GIVE_CARD_BACK,
    HAS_PAGES,
    RELEASE_PAGES,
    RESERVE_PAGES,
    RESET_MTU,
    SET_MTU,
    TAKE_CARD,
    shell,
)
from thc_lab.testbed.process import HostSetup, SetupStep
from thc_lab.testbed.sections import Dpdk, HostDescription, Nic

_VFIO_PCI = "/sys/bus/pci/drivers/vfio-pci"
_PAGE_KIB = {"2M": 2048, "1G": 1 << 20}


def setups_of(testbed: Testbed) -> tuple[HostSetup, ...]:
    """Steps on every host that has a NIC."""
    setups = []
    for host in testbed.hosts:
        steps = tuple(_steps(testbed, host))
        if steps:
            setups.append(HostSetup(host.name, steps))
    return tuple(setups)


def _steps(testbed: Testbed, host: HostDescription) -> Iterator[SetupStep]:
    transport = testbed.transport
    if isinstance(transport, Dpdk):
        if not host.nics:
            return
        if transport.hugepages != "none":
            yield from _reserve_pages(testbed, transport, host)
        if transport.driver == "vfio-pci":
            yield SetupStep("load vfio-pci", ("modprobe", "vfio-pci"), done=("test", "-d", _VFIO_PCI))
            for nic in host.nics:
                yield _bind(testbed.run_folder, nic)
    elif transport.mtu_bytes is not None:
        for nic in host.nics:
            yield _set_mtu(testbed.run_folder, nic, transport.mtu_bytes)


def _reserve_pages(testbed: Testbed, dpdk: Dpdk, host: HostDescription) -> Iterator[SetupStep]:
    page_kib = _PAGE_KIB[dpdk.hugepages]
    pages_each = -(-dpdk.memory_mib * 1024 // page_kib)
    nodes = [nic.numa_node for nic in host.nics]
    for node in dict.fromkeys(nodes):
        pages = pages_each * nodes.count(node)
        base = "/sys/kernel/mm/hugepages" if node is None else f"/sys/devices/system/node/node{node}/hugepages"
        count = f"{base}/hugepages-{page_kib}kB/nr_hugepages"
        where = "" if node is None else f" on NUMA node {node}"
        kept = f"{testbed.run_folder}/hugepages.{'any' if node is None else node}"
        yield SetupStep(
            f"reserve {pages} huge pages of {dpdk.hugepages}B{where}",
            do=shell(RESERVE_PAGES, kept, count, str(pages)),
            done=shell(HAS_PAGES, count, str(pages)),
            undo=shell(RELEASE_PAGES, kept, count),
        )


def _bind(folder: str, nic: Nic) -> SetupStep:
    device = str(nic.pci_address)
    kept = f"{folder}/driver.{device}"
    return SetupStep(
        f"give {device} ({nic.ip}) to vfio-pci",
        do=shell(TAKE_CARD, kept, device),
        done=("test", f"/sys/bus/pci/devices/{device}/driver", "-ef", _VFIO_PCI),
        undo=shell(GIVE_CARD_BACK, kept, device),
    )


def _set_mtu(folder: str, nic: Nic, mtu_bytes: int) -> SetupStep:
    interface = str(nic.interface)
    kept = f"{folder}/mtu.{interface}"
    return SetupStep(
        f"MTU {mtu_bytes} on {interface} ({nic.ip})",
        do=shell(SET_MTU, kept, interface, str(mtu_bytes)),
        done=("grep", "-qx", str(mtu_bytes), f"/sys/class/net/{interface}/mtu"),
        undo=shell(RESET_MTU, kept, interface),
    )
