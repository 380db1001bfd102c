"""Starts DPDK without huge pages and without any real device, and opens a port on a null device."""

from __future__ import annotations

import contextlib
import ctypes
import json
from pathlib import Path

from byteps_thc._net.session import DpdkConfig, Session, Timeouts
from byteps_thc._scheme.config import ThcConfig
from byteps_thc._scheme.errors import DeadlineError, DpdkUnavailableError

_EAL_ARGUMENTS = ("--no-huge", "-m", "64", "--no-pci", "--no-telemetry", "--vdev=net_null0")
#: Addresses for documentation (RFC 5737); no packet leaves a null device.
_OWN_IP, _SERVER_IP, _SERVER_MAC = "192.0.2.1", "192.0.2.2", "02:00:00:00:00:01"


def version() -> str:
    """Version of the DPDK libraries in this process."""
    maps = Path("/proc/self/maps").read_text()
    path = next(line.split()[-1] for line in maps.splitlines() if "librte_eal" in line)
    library = ctypes.CDLL(path)
    library.rte_version.restype = ctypes.c_char_p
    text: bytes = library.rte_version()
    return text.decode()


def probe() -> dict[str, object]:
    """Start EAL and a port. Nobody answers behind a null device, so a deadline means that all went well."""
    backend = DpdkConfig(_OWN_IP, eal_args=_EAL_ARGUMENTS, neighbours=[(_SERVER_IP, _SERVER_MAC)])
    with contextlib.suppress(DeadlineError):
        Session(
            [_SERVER_IP],
            job=1,
            worker=0,
            workers=1,
            config=ThcConfig(),
            timeouts=Timeouts(connect_s=0.05),
            backend=backend,
        ).close()
    return {"version": version()}


def answer() -> dict[str, object]:
    """What probe() says, or why DPDK does not start."""
    try:
        return probe()
    except DpdkUnavailableError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    print(json.dumps(answer()))
