"""Checks of network interfaces: link, MTU, and whether DPDK can have them."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from byteps_thc._cli.doctor.finding import Finding, State
from byteps_thc._scheme.wire.layout import AUTO_CODES_PER_PACKET, MIN_CODES_PER_PACKET, SWITCH_CODES_PER_PACKET, Header

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_IP_UDP_BYTES = 28
_ETHERNET_MTU_BYTES, _JUMBO_MTU_BYTES = 1500, 9000
_NETWORK_CLASS = "0x02"
#: Userspace drivers that DPDK takes devices over with. mlx4, mlx5 and mana devices stay with their kernel driver.
_DPDK_DRIVERS = {"vfio-pci", "igb_uio", "uio_pci_generic"}
_SHARED_DRIVERS = {"mlx4_core", "mlx5_core", "mana"}
# Of linux/sockios.h and net/if.h.
_SIOCGIFFLAGS, _SIOCGIFMTU = 0x8913, 0x8921
_UP, _LOOPBACK, _RUNNING = 1 << 0, 1 << 3, 1 << 6


@dataclass(frozen=True)
class _Interface:
    """driver, pci_address, speed: empty when there is none, or sysfs is of another network namespace."""

    name: str
    mtu_bytes: int
    link: str
    driver: str
    pci_address: str
    speed: str

    @property
    def about(self) -> list[str]:
        """What it is, in phrases."""
        speed = [f"{int(self.speed) / 1000:g} Gb/s"] if self.speed.isdecimal() else []
        return [f"driver {self.driver}" if self.driver else "virtual", f"link {self.link}", *speed]


def auto_codes_per_packet(mtu_bytes: int) -> int:
    """What codes_per_packet="auto" comes to with 8-bit sums, on a path of that MTU."""
    fits = min(mtu_bytes - _IP_UDP_BYTES - Header.SIZE_BYTES, AUTO_CODES_PER_PACKET)
    unit = SWITCH_CODES_PER_PACKET if fits >= SWITCH_CODES_PER_PACKET else MIN_CODES_PER_PACKET
    return max(fits, 0) // unit * unit


def check_interfaces() -> Sequence[Finding]:
    """All network cards, and virtual interfaces that are up; not loopback."""
    findings = [_check_interface(interface) for interface in _interfaces()]
    taken = [_check_taken(device) for device in sorted(_PCI_DEVICES.glob("*")) if _is_taken_by_dpdk(device)]
    return [*findings, *taken] or [Finding("network", State.OPTIONAL, "no interface but loopback: one host only")]


def _check_interface(interface: _Interface) -> Finding:
    name = f"network {interface.name}"
    if interface.link != "up":
        command = f"ip link set {interface.name} up"
        return Finding(name, State.OPTIONAL, ", ".join(interface.about), command)
    codes = auto_codes_per_packet(interface.mtu_bytes)
    about = [*interface.about, f'MTU {interface.mtu_bytes}: codes_per_packet "auto" gives {codes}']
    if codes < SWITCH_CODES_PER_PACKET:
        about.append(f"the default, {SWITCH_CODES_PER_PACKET}, does not fit")
        return Finding(name, State.PROBLEM, ", ".join(about), f"ip link set {interface.name} mtu 1500")
    # No command: nothing here says what the rest of the path takes. An MTU below Ethernet's says that it is narrow.
    if interface.driver and _ETHERNET_MTU_BYTES <= interface.mtu_bytes < _JUMBO_MTU_BYTES:
        more = auto_codes_per_packet(_JUMBO_MTU_BYTES)
        about.append(f"{more} with jumbo frames, where all hosts and switches on the path have them")
    return Finding(name, State.OK, ", ".join([*about, _about_dpdk(interface)]))


def _about_dpdk(interface: _Interface) -> str:
    if not interface.pci_address:
        return "DPDK through net_af_packet"
    if interface.driver in _SHARED_DRIVERS:
        return f"DPDK can use {interface.pci_address} beside the kernel"
    return f"DPDK can have {interface.pci_address} (dpdk-devbind.py -b vfio-pci), and the kernel loses it then"


def _check_taken(device: Path) -> Finding:
    meaning = f"bound to {_driver(device)}, so DPDK has it: EAL argument -a {device.name}"
    return Finding(f"network {device.name}", State.OK, meaning)


def _is_taken_by_dpdk(device: Path) -> bool:
    return _read(device / "class").startswith(_NETWORK_CLASS) and _driver(device) in _DPDK_DRIVERS


def _interfaces() -> Iterator[_Interface]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for index, name in socket.if_nameindex():
            flags = _ask(control, _SIOCGIFFLAGS, name, "H")
            folder = Path("/sys/class/net", name)
            own_sysfs = _read(folder / "ifindex") == str(index)
            driver = _driver(folder / "device") if own_sysfs else ""
            if flags & _LOOPBACK or not (driver or flags & _UP):
                continue
            yield _Interface(
                name=name,
                mtu_bytes=_ask(control, _SIOCGIFMTU, name, "i"),
                link="up" if flags & _RUNNING else "without carrier" if flags & _UP else "down",
                driver=driver,
                pci_address=_pci_address(folder / "device") if own_sysfs else "",
                speed=_read(folder / "speed") if own_sysfs else "",
            )


def _ask(control: socket.socket, request: int, name: str, kind: str) -> int:
    """A field of struct ifreq: the name in 16 bytes, then the answer."""
    answer = fcntl.ioctl(control.fileno(), request, struct.pack("16s24x", name.encode()))
    value: int = struct.unpack_from(kind, answer, 16)[0]
    return value


def _pci_address(device: Path) -> str:
    """The PCI device that an interface is on, directly or through virtio; empty when it is on none."""
    real = device.resolve()
    return next((path.name for path in (real, *real.parents) if (_PCI_DEVICES / path.name).exists()), "")


def _driver(device: Path) -> str:
    link = device / "driver"
    return link.resolve().name if link.exists() else ""


def _read(path: Path) -> str:
    """A file's text; empty when it cannot be read (the speed of a link that is down)."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
