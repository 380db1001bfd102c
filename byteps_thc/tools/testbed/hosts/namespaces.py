"""Network namespaces of this machine as hosts, with cables (veth pairs) between them. They stay until removed."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from byteps_thc.errors import ConfigurationError
from byteps_thc.tools.demo.namespaces import command_inside, inside
from byteps_thc.tools.demo.offload import disable_offloads
from byteps_thc.tools.testbed.hosts.local import LocalHost
from byteps_thc.tools.testbed.process import Cable, CableEnd

FOLDER = Path("/run/netns")
_TIMEOUT_S = 20.0


def namespace_of(testbed: str, host: str) -> str:
    """Name of the namespace that is a host of a testbed."""
    return f"thc-{testbed}-{host}"


def why_not() -> str | None:
    """Say why this process can make no namespaces; None when it can."""
    if os.geteuid() != 0:
        return "network namespaces need root: run this as root (sudo)"
    if shutil.which("ip") is None:
        return "network namespaces need the `ip` command: apt-get install iproute2"
    return None


def is_there(namespace: str) -> bool:
    """Whether there is a namespace of that name."""
    return (FOLDER / namespace).exists()


class NamespaceMaker:
    """Makes the namespaces and cables of a testbed. ConfigurationError with the command that failed."""

    def __init__(self, testbed: str, python: str) -> None:
        self._testbed = testbed
        self._machine = LocalHost("this machine", python)

    async def add(self, host: str) -> None:
        """Make the namespace of a host."""
        name = namespace_of(self._testbed, host)
        await self._run(["ip", "netns", "add", name])
        await self._ip(host, "link", "set", "dev", "lo", "up")

    async def connect(self, cable: Cable) -> None:
        """Lay a cable between two hosts and bring both ends up; a half-made one is made anew."""
        a, b = cable.a, cable.b
        for end in (a, b):
            if self.has(end):
                await self._ip(end.host, "link", "delete", "dev", end.interface)
        await self._ip(
            a.host, "link", "add", "name", a.interface, "address", a.mac, "mtu", str(cable.mtu_bytes), "type", "veth",
            "peer", "name", b.interface, "address", b.mac, "mtu", str(cable.mtu_bytes),
            "netns", namespace_of(self._testbed, b.host),
        )  # fmt: skip
        for end in (a, b):
            if end.address:
                await self._ip(end.host, "address", "add", end.address, "dev", end.interface)
            # No IPv6 link-local address: its neighbour discovery would only be flooded.
            await self._ip(end.host, "link", "set", "dev", end.interface, "addrgenmode", "none", "up")
            if not cable.offloads:
                with inside(namespace_of(self._testbed, end.host)):
                    disable_offloads(end.interface)

    def has(self, end: CableEnd) -> bool:
        """Whether that end of a cable is there."""
        with inside(namespace_of(self._testbed, end.host)):
            return end.interface in _interfaces()

    async def remove(self, host: str) -> None:
        """Remove the namespace of a host, if it is there; its cables go with it."""
        name = namespace_of(self._testbed, host)
        if is_there(name):
            await self._run(["ip", "netns", "del", name])

    async def _ip(self, host: str, *arguments: str) -> None:
        await self._run([*command_inside(namespace_of(self._testbed, host)), "ip", *arguments])

    async def _run(self, command: Sequence[str]) -> None:
        outcome = await self._machine.run(command, timeout_s=_TIMEOUT_S)
        if outcome.status != 0:
            raise ConfigurationError(
                f"`{' '.join(command)}` failed with {outcome.reason}. Network namespaces need root with CAP_NET_ADMIN "
                "and CAP_SYS_ADMIN; containers often lack them"
            )


def _interfaces() -> set[str]:
    """Names of the interfaces of the calling thread's namespace."""
    return {name for _, name in socket.if_nameindex()}
