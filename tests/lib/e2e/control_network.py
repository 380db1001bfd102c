"""The second network of a host whose NIC belongs to DPDK: rendezvous, small tensors, logs.

A hub in a namespace of its own with a cable to every worker: what runs in the hub has one address for all.
"""

from __future__ import annotations

import subprocess

from byteps_lab import Home

from byteps_thc.tools.demo.namespaces import Namespaces, Plug, command_inside
from byteps_thc.tools.demo.site import Site

HUB_IP = "10.78.255.1"


class ControlNetwork:
    """Cables between the hub and the workers of a site; use their Homes for BytePS's processes."""

    def __init__(self, namespaces: Namespaces, site: Site) -> None:
        self._hub = namespaces.add("hub")
        self._workers = site.workers
        _ip(self._hub, "address", "add", f"{HUB_IP}/32", "dev", "lo")
        for worker, home in enumerate(site.workers):
            namespaces.connect(
                Plug(home, "control", f"02:00:00:04:00:{worker:02x}", f"10.78.{worker}.1/24"),
                Plug(self._hub, f"worker{worker}", f"02:00:00:05:00:{worker:02x}", f"10.78.{worker}.254/24"),
                offloads=True,
            )
            _ip(home, "route", "add", f"{HUB_IP}/32", "via", f"10.78.{worker}.254")

    @property
    def hub(self) -> Home:
        """Where scheduler and servers run."""
        return Home(tuple(command_inside(self._hub)), HUB_IP)

    @property
    def homes(self) -> list[Home]:
        """Where the workers run."""
        return [Home(tuple(command_inside(home)), f"10.78.{worker}.1") for worker, home in enumerate(self._workers)]


def _ip(namespace: str, *arguments: str) -> None:
    subprocess.run([*command_inside(namespace), "ip", *arguments], check=True, timeout=10)
