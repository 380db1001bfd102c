"""THC_SERVERS and its like: where a worker's servers are, for programs that do not say it themselves."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from byteps_thc.environment import settings_from_environment
from byteps_thc.errors import ConfigurationError
from byteps_thc.transport.network_settings import REMOVED_SETTINGS, DpdkConfig, Timeouts, UdpConfig
from byteps_thc.transport.quorum import Quorum

#: seconds; CompressionPolicy's
_DEADLINE_S = "600"

#: Settings of the network that are one environment variable: THC_<NAME>.
NETWORK_VARIABLES = ("servers", "job", "run", "quorum", "loss_tolerant", "polling_threads")


def variables(names: tuple[str, ...]) -> dict[str, Any]:
    """Return THC_<NAME> of each name that is set, by name."""
    return {name: value for name in names if (value := os.environ.get(f"THC_{name.upper()}"))}


def servers_of(text: str) -> tuple[str, ...]:
    """Return the addresses in a text with commas."""
    return tuple(item.strip() for item in text.split(",") if item.strip())


def quorum_of(text: str) -> Quorum:
    """Return the number of workers or the share of them that a text says; ValueError when it is no number."""
    return float(text) if "." in text else int(text)


def backend_from_environment(socket: int = 0) -> UdpConfig | DpdkConfig | None:
    """Return what THC_BACKEND, THC_LOCAL, THC_EAL_ARGS and THC_DPDK_NEIGHBOURS say; None: nothing.

    socket: of several processes that share the variables; kernel UDP binds so many ports above the one of THC_LOCAL.
    """
    kind, local = os.environ.get("THC_BACKEND", ""), os.environ.get("THC_LOCAL", "")
    makers: dict[str, Callable[[], UdpConfig | DpdkConfig | None]] = {
        "": lambda: nth_socket(UdpConfig(local=local), socket) if local else None,
        "udp": lambda: nth_socket(UdpConfig(local=local), socket) if local else None,
        "dpdk": lambda: _dpdk_from_environment(local),
    }
    if kind not in makers:
        raise ConfigurationError(f"THC_BACKEND must be udp or dpdk, not {kind!r}")
    if kind == "dpdk" and not local:
        raise ConfigurationError("THC_BACKEND=dpdk needs THC_LOCAL, the worker's own IP")
    if kind == "dpdk" and socket > 0:
        raise ConfigurationError("THC_BACKEND=dpdk: a device of DPDK serves one process, so start one on each host")
    return makers[kind]()


def _dpdk_from_environment(local: str) -> DpdkConfig:
    neighbours = []
    for entry in filter(None, os.environ.get("THC_DPDK_NEIGHBOURS", "").split(",")):
        ip, _, mac = entry.partition("=")
        if not (ip.strip() and mac.strip()):
            raise ConfigurationError(
                f"THC_DPDK_NEIGHBOURS: {entry!r} is not IP=MAC, such as 10.0.0.1=02:00:00:00:00:01"
            )
        neighbours.append((ip.strip(), mac.strip()))
    eal_args = shlex.split(os.environ.get("THC_EAL_ARGS", ""))
    return DpdkConfig(local=local, eal_args=eal_args, neighbours=tuple(neighbours))


def nth_socket(backend: UdpConfig, number: int) -> UdpConfig:
    """Return the same with a port that is `number` above; a port that is left open stays so."""
    address, _, port = backend.local.partition(":")
    if not (number and port.isdigit() and int(port)):
        return backend
    return UdpConfig(local=f"{address}:{int(port) + number}", gso=backend.gso, gro=backend.gro)


def timeouts_from_environment() -> Timeouts | None:
    """Return what THC_TIMEOUTS says, such as connect_s=60,loss_s=0.1; None when it is not set.

    An operation takes THC_DEADLINE_S at most unless operation_s is given.
    """
    settings = settings_from_environment("THC_TIMEOUTS", "connect_s=60,loss_s=0.1")
    if not settings:
        return None
    if removed := [name for name in settings if name in REMOVED_SETTINGS]:
        raise ConfigurationError(f"THC_TIMEOUTS: {removed[0]} {REMOVED_SETTINGS[removed[0]]}: remove it")
    names = [field.name for field in fields(Timeouts)]
    wrong = [name for name, value in settings.items() if name not in names or not _is_positive(value)]
    if wrong:
        raise ConfigurationError(f"THC_TIMEOUTS: {wrong[0]} is no positive number of {', '.join(names)}")
    seconds = {name: float(value) for name, value in settings.items()}
    return Timeouts(**{"operation_s": float(os.environ.get("THC_DEADLINE_S") or _DEADLINE_S)} | seconds)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
