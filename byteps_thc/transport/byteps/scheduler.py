"""What tells a BytePS training from others that run now."""

from __future__ import annotations

import ipaddress
import os

from byteps_thc.transport.host import host_identity


def run_of_scheduler() -> str | None:
    """Return the address of the training's scheduler, which two trainings cannot share; None without one."""
    address, port = os.environ.get("DMLC_PS_ROOT_URI"), os.environ.get("DMLC_PS_ROOT_PORT")
    if not address or not port:
        return None
    # A loopback address is another scheduler on each host.
    host = f" of {host_identity().decode(errors='replace')}" if _is_loopback(address) else ""
    return f"scheduler {address}:{port}{host}"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
