"""Which host and which node a process runs on."""

from __future__ import annotations

import socket
from pathlib import Path


def host_identity() -> bytes:
    """Return what the processes of this host have in common, and no others."""
    # Host names may be the same on all hosts (localhost), boot ids may not.
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return socket.gethostname().encode()


def node_identity() -> str:
    """Return what the processes of a node have in common: the host, and its network as they see it.

    Containers of a host that have networks of their own are nodes of their own.
    """
    # Of this process: a thread may be elsewhere.
    try:
        network = Path("/proc/self/ns/net").stat()
    except OSError:
        return host_identity().decode()
    return f"{host_identity().decode()} {network.st_dev}:{network.st_ino}"


def host_of(node: str) -> str:
    """Return the host of what node_identity() gave."""
    return node.partition(" ")[0]
