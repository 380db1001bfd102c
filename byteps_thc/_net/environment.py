"""Settings of the network that THC_* variables have, for programs that do not say them."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import Any

from byteps_thc._net.network_settings import DpdkConfig, Timeouts, UdpConfig, resolve_quorum
from byteps_thc._scheme.environment import default_deadline_s, variable, variable_settings
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.wire.layout import MAX_WORKERS

#: Of THC_SERVERS, besides the addresses and Timeouts.
_KINDS: dict[str, tuple[type, ...]] = {"quorum": (int, float), "loss_tolerant": (bool,), "lanes": (int,)}


def servers_of(text: object) -> tuple[str, ...]:
    """Return the addresses in a text with commas, or in a list of a TOML file."""
    items = text if isinstance(text, list) else str(text).split(",")
    return tuple(address for item in items if (address := str(item).strip()))


def network_from_environment() -> dict[str, Any]:
    """Return what THC_SERVERS says, by the names of NetworkSettings, `servers` and `lanes`.

    An operation takes THC_DEADLINE_S at most unless operation_s is given.
    """
    seconds = [field.name for field in fields(Timeouts)]
    settings = variable_settings("SERVERS", ("servers", *_KINDS, *seconds))
    for name, value in settings.items():
        if name in _KINDS and type(value) not in _KINDS[name]:
            raise ConfigurationError(f"THC_SERVERS: {name} is {value!r}, not {_KINDS[name][-1].__name__}")
        if name in (*seconds, "lanes") and (type(value) not in (int, float) or value <= 0):
            unit = " of seconds" if name in seconds else ""
            raise ConfigurationError(f"THC_SERVERS: {name} is {value!r}, not a positive number{unit}")
    try:
        resolve_quorum(settings.get("quorum"), MAX_WORKERS)
    except ConfigurationError as error:
        raise ConfigurationError(f"THC_SERVERS: {error}") from None
    timeouts = {name: float(settings.pop(name)) for name in seconds if name in settings}
    if timeouts:
        settings["timeouts"] = Timeouts(**{"operation_s": default_deadline_s()} | timeouts)
    if "servers" in settings:
        settings["servers"] = servers_of(settings["servers"])
    return settings


def backend_from_environment(socket: int = 0) -> UdpConfig | DpdkConfig | None:
    """Return what THC_BACKEND, THC_LOCAL and THC_EAL_ARGS say; None: nothing.

    socket: of several processes that share the variables; kernel UDP binds so many ports above the one of THC_LOCAL.
    """
    kind, local = variable("BACKEND"), variable("LOCAL")
    if kind not in ("", "udp", "dpdk"):
        raise ConfigurationError(f"THC_BACKEND must be udp or dpdk, not {kind!r}")
    if kind != "dpdk":
        return nth_socket(UdpConfig(local=local), socket) if local else None
    if not local:
        raise ConfigurationError("THC_BACKEND=dpdk needs THC_LOCAL, the worker's own IP")
    if socket > 0:
        raise ConfigurationError("THC_BACKEND=dpdk: a device of DPDK serves one process, so start one on each host")
    return DpdkConfig(local=local, eal_args=shlex.split(variable("EAL_ARGS")))


def nth_socket(backend: UdpConfig, number: int) -> UdpConfig:
    """Return the same with a port that is `number` above; a port that is left open stays so."""
    address, _, port = backend.local.partition(":")
    if not (number and port.isdigit() and int(port)):
        return backend
    return UdpConfig(local=f"{address}:{int(port) + number}", gso=backend.gso, gro=backend.gro)
