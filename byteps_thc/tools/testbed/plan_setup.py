"""What hosts that are reached over ssh need before a run: huge pages, drivers, MTU. All of it is undone."""

from __future__ import annotations

from collections.abc import Iterator

from byteps_thc.tools.testbed.description import Testbed
from byteps_thc.tools.testbed.description_parts import Dpdk, HostDescription, Nic
from byteps_thc.tools.testbed.process import HostSetup, SetupStep

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
            yield SetupStep(
                "load vfio-pci", ("modprobe", "vfio-pci"), done=("test", "-d", "/sys/bus/pci/drivers/vfio-pci")
            )
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
        yield _remembering(
            f"reserve {pages} huge pages of {dpdk.hugepages}B{where}",
            kept=f"{testbed.run_folder}/hugepages.{'any' if node is None else node}",
            read=f"cat {count}",
            do=f"echo {pages} > {count} && test $(cat {count}) -ge {pages}",
            undo=f'echo "$before" > {count}',
            done=f"test $(cat {count}) -ge {pages}",
        )


def _bind(folder: str, nic: Nic) -> SetupStep:
    driver = f"/sys/bus/pci/devices/{nic.pci_address}/driver"
    bound = f"basename $(readlink {driver} || echo none)"  # none: dpdk-devbind.py takes it for unbinding
    return _remembering(
        f"give {nic.pci_address} ({nic.ip}) to vfio-pci",
        kept=f"{folder}/driver.{nic.pci_address}",
        read=bound,
        do=f"dpdk-devbind.py --bind=vfio-pci {nic.pci_address}",
        # It ends well even when it has not done it.
        undo=f'dpdk-devbind.py --bind="$before" {nic.pci_address} && test "$({bound})" = "$before"',
        done=f"readlink {driver} | grep -q '/vfio-pci$'",
    )


def _set_mtu(folder: str, nic: Nic, mtu_bytes: int) -> SetupStep:
    mtu = f"/sys/class/net/{nic.interface}/mtu"
    return _remembering(
        f"MTU {mtu_bytes} on {nic.interface} ({nic.ip})",
        kept=f"{folder}/mtu.{nic.interface}",
        read=f"cat {mtu}",
        do=f"ip link set dev {nic.interface} mtu {mtu_bytes}",
        undo=f'ip link set dev {nic.interface} mtu "$before"',
        done=f"test $(cat {mtu}) -eq {mtu_bytes}",
    )


def _remembering(what: str, *, kept: str, read: str, do: str, undo: str, done: str) -> SetupStep:
    """A step that keeps in a file how it was before, for `undo`, which has it as $before.

    The file is written once: after a failed run it still has what was there at first.
    """
    return SetupStep(
        what,
        do=("sh", "-c", f"test -s {kept} || {{ {read} > {kept} || rm {kept}; }} && {do}"),
        done=("sh", "-c", done),
        undo=("sh", "-c", f"before=$(cat {kept}) && {undo} && rm {kept}"),
    )
