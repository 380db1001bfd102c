"""Network namespaces of this host, for workers and switches that are to see no network but their own cables."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from byteps_thc.errors import ConfigurationError, TransportError
from byteps_thc.tools.demo import leftover_namespaces
from byteps_thc.tools.demo.offload import disable_offloads

_COMMAND_TIMEOUT_S = 10.0
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Plug:
    """One end of a cable: an interface in a namespace."""

    namespace: str
    interface: str
    mac: str
    #: with prefix length, such as 10.0.0.1/24; empty: none
    address: str = ""


class Namespaces:
    """Namespaces and the cables (veth pairs) between them; a context manager that removes them all.

    Those of processes that were killed are removed when the context is entered. Raises ConfigurationError when this
    process may not make any, or has no `ip` command.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._prefix = leftover_namespaces.name_prefix()
        if os.geteuid() != 0:
            raise ConfigurationError("network namespaces need root: run this as root (sudo)")
        if shutil.which("ip") is None:
            raise ConfigurationError("network namespaces need the `ip` command: apt-get install iproute2")

    def __enter__(self) -> Namespaces:
        leftover_namespaces.remove()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, name: str) -> str:
        """Make a namespace, named after `name` and this process; returns its name."""
        full = self._prefix + name
        self._stack.callback(leftover_namespaces.delete, full)  # before: a signal may come while it is made
        _run("ip", "netns", "add", full)
        _ip(full, "link", "set", "lo", "up")
        return full

    def connect(self, a: Plug, b: Plug, *, offloads: bool = False) -> None:
        """Lay a cable between two namespaces and bring both ends up.

        offloads: leave segmentation and checksums to the interfaces; a switch in software takes frames only as they
        are on a wire, without offloads.
        """
        _ip(a.namespace, "link", "add", a.interface, "address", a.mac, "type", "veth",
            "peer", "name", b.interface, "address", b.mac, "netns", b.namespace)  # fmt: skip
        for plug in (a, b):
            if plug.address:
                _ip(plug.namespace, "address", "add", plug.address, "dev", plug.interface)
            # No IPv6 link-local address: its neighbour discovery would only be flooded.
            _ip(plug.namespace, "link", "set", plug.interface, "addrgenmode", "none", "up")
            if not offloads:
                with inside(plug.namespace):
                    disable_offloads(plug.interface)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Move the calling thread; sockets it opens and threads it starts meanwhile stay in the namespace."""
    with Path("/proc/thread-self/ns/net").open("rb") as own, Path("/run/netns", namespace).open("rb") as other:
        _set_namespace(other)
        try:
            yield
        finally:
            _set_namespace(own)


def _set_namespace(namespace: IO[bytes]) -> None:
    # os.setns() is there from Python 3.12 on.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
        raise TransportError(f"cannot enter the network namespace: {os.strerror(ctypes.get_errno())}")


def command_inside(namespace: str) -> list[str]:
    """What to put in front of a command to run it in a namespace."""
    # Unlike `ip netns exec` and `ip -n` it mounts nothing, which fails where / is no mount point (chroot).
    return ["nsenter", f"--net=/run/netns/{namespace}"]


def _ip(namespace: str, *arguments: str) -> None:
    _run(*command_inside(namespace), "ip", *arguments)


def _run(*command: str) -> None:
    finished = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False)
    if finished.returncode != 0:
        raise ConfigurationError(
            f"`{' '.join(command)}` failed: {finished.stderr.strip()}. Network namespaces need root with "
            "CAP_NET_ADMIN and CAP_SYS_ADMIN; containers often lack them"
        )
