"""Settings of the connection between workers and servers: for Session, NetworkConfig and Compression.thc.

Annotations here are types, not strings: classes of other modules inherit them, where the names are undefined.
"""

import math
import numbers
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field

from byteps_thc._base.built import check_arithmetic
from byteps_thc._base.environment import default_deadline_s, variable, variable_settings
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.settings import RefusesUnknown
from byteps_thc._base.wire.layout import MAX_WORKERS
from byteps_thc._native import _comm
from byteps_thc._net.run import Run

check_arithmetic(_comm)

#: A number of workers, a share of them (0.9, the paper's 90 %), or None for all.
Quorum = int | float | None
#: Path of a key file, or the 32 bytes of a key.
JobKey = str | os.PathLike[str] | bytes


@dataclass(frozen=True)
class UdpConfig(RefusesUnknown):
    """Settings of kernel UDP."""

    local: str = "[::]:0"
    """HOST or HOST:PORT to bind. Port 0: any free port. With a switch, the address in its description."""
    gso: bool = True
    """Send bursts in one system call if the kernel supports it."""
    gro: bool = True
    """Receive bursts in one system call if the kernel supports it."""

    def __post_init__(self) -> None:
        for name in ("gso", "gro"):
            if getattr(self, name) not in (True, False):
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be True or False")


@dataclass(frozen=True)
class DpdkConfig(RefusesUnknown):
    """Settings of DPDK's ethdev, for any poll-mode driver.

    Raises DpdkUnavailableError if this build has no DPDK or EAL does not start.
    """

    local: str
    """HOST or HOST:PORT of this worker. Port 0: any. With a switch, the address in its description."""
    eal_args: Sequence[str] = ()
    """EAL arguments, once per process: ("-a", "0000:3b:00.1").
    Without hardware: ("--no-huge", "-m", "256", "--vdev=net_af_packet0,iface=veth0")."""
    devices: Sequence[str] = ()
    """Names or PCI addresses of devices. Empty: all devices of EAL."""
    prefix_length: int = 24
    """Bits of the network part of `local`."""
    gateway: str = ""
    """Next hop to other networks. Empty: none."""
    neighbours: Sequence[tuple[str, str]] = ()
    """(IP, MAC) of next hops. ARP finds all others."""
    mtu_bytes: int = 1500
    """MTU of the device in bytes."""


@dataclass(frozen=True)
class Timeouts(RefusesUnknown):
    """Timeouts in seconds. Retransmissions follow the measured round trips and need no setting."""

    connect_s: float = 10.0
    """Seconds to look up and join the servers."""
    operation_s: float = 60.0
    """Seconds from a push to its last result."""
    loss_s: float = 0.05
    """Loss-tolerant: seconds after which a packet of codes without a result counts as lost."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
                raise ConfigurationError(f"{name}={value!r} must be a positive number of seconds")


@dataclass(frozen=True, kw_only=True)
class NetworkSettings(RefusesUnknown):
    """Settings of the connection to servers, shared by Session, NetworkConfig and Compression.thc."""

    quorum: Quorum = None
    """Workers that complete a sum: a number, or a share below 1 (0.9 is the paper's). None: all.
    A late worker has no part in the sum. Its parameters may drift apart: use a ParameterSynchronizer."""
    loss_tolerant: bool = False
    """Count lost packets of codes as zero after timeouts.loss_s instead of repeating them.
    Norms are always repeated, because sums of codes with different norms are wrong. Workers may get different
    averages, as with a quorum: use a ParameterSynchronizer."""
    timeouts: Timeouts | None = None
    """A Timeouts. None: its defaults, and in a training CompressionPolicy.deadline_s for operation_s."""
    backend: Literal["udp"] | UdpConfig | DpdkConfig = "udp"
    """Kernel UDP ("udp" or a UdpConfig) or DPDK (a DpdkConfig)."""
    key: Annotated[JobKey | None, Field(repr=False)] = field(default=None, repr=False)
    """Path of a key file, or the 32 bytes of the key of the job. None: THC_KEY_FILE, or no key.
    Servers need the same key (docs/servers.md#keys)."""
    run: Run | None = None
    """An ID (number or text) shared by all workers of one run. None: THC_RUN, or an automatic ID.
    Automatic IDs are a random number of rank 0 (process groups), or the ID of torchrun, Slurm or BytePS's scheduler.
    A server rejects a worker with the same job but another run, because it would add gradients of two runs. Two runs
    without an ID are one run to a server, and thc-ps logs a warning."""

    def __post_init__(self) -> None:
        if not isinstance(self.timeouts, Timeouts | None):
            example = "Timeouts(connect_s=10, operation_s=60)"
            raise ConfigurationError(f"timeouts must be a Timeouts, not {self.timeouts!r}: pass {example}")

    def may_drift(self, workers: int) -> bool:
        """Return whether workers may get different sums."""
        return self.loss_tolerant or resolve_quorum(self.quorum, workers) < workers


def settings_of(network: NetworkSettings) -> dict[str, Any]:
    return {setting.name: getattr(network, setting.name) for setting in fields(NetworkSettings)}


def _use_key(io: _comm.IoConfig, key: JobKey | None) -> None:
    key = variable("KEY_FILE") or None if key is None else key
    if isinstance(key, bytes):
        io.use_key(key)
    elif isinstance(key, (str, os.PathLike)):
        io.use_key_file(os.fspath(key))
    elif key is not None:  # not shown: it may be a secret
        raise ConfigurationError(f"key must be the path of a key file or 32 bytes, not a {type(key).__name__}")


def io_config(network: NetworkSettings) -> _comm.IoConfig:
    io = _comm.IoConfig()
    backend = UdpConfig() if network.backend == "udp" else network.backend
    if isinstance(backend, UdpConfig):
        io.use_udp(local=backend.local, gso=backend.gso, gro=backend.gro)
    elif isinstance(backend, DpdkConfig):
        lists = {name: list(getattr(backend, name)) for name in ("eal_args", "devices", "neighbours")}
        io.use_dpdk(**vars(backend) | lists)
    else:
        raise ConfigurationError(f"backend must be 'udp', a UdpConfig or a DpdkConfig, not {backend!r}")
    _use_key(io, network.key)
    return io


def inquiry_io_config(network: NetworkSettings) -> _comm.IoConfig:
    """Return the configuration of probes: kernel UDP on a separate port, with the key."""
    backend = network.backend if isinstance(network.backend, UdpConfig) else UdpConfig()
    io = _comm.IoConfig()
    io.use_udp(local=split_port(backend.local)[0] + ":0", gso=False, gro=False)
    _use_key(io, network.key)
    return io


def resolve_quorum(quorum: Quorum, workers: int) -> int:
    """Return the number of workers, 1 .. workers, that complete a sum.

    quorum: that number, a share of the workers above 0 and below 1, which is rounded up (0.9 of 12 is 11), or None for
    all. Raises ConfigurationError for anything else.
    """
    if quorum is None:
        return workers
    if isinstance(quorum, numbers.Integral) and not isinstance(quorum, bool):
        if 1 <= quorum <= workers:
            return int(quorum)
        raise ConfigurationError(f"quorum must be in 1 .. {workers}, the number of workers, not {quorum}")
    if isinstance(quorum, numbers.Real) and not isinstance(quorum, bool) and 0 < quorum < 1:
        # The decimal text, not the nearest binary fraction: 0.07 of 100 is 7, and 0.07 * 100 is a little more.
        return math.ceil(Fraction(repr(float(quorum))) * workers)
    raise ConfigurationError(
        f"quorum is {quorum!r}: give a number of workers (9), or a share of them below 1 (0.9, which is 90 %)"
    )


#: Types in THC_SERVERS, besides the addresses and Timeouts.
_KINDS: dict[str, tuple[type, ...]] = {"quorum": (int, float), "loss_tolerant": (bool,), "lanes": (int,)}
_ALLOWED = {
    "quorum": "a number of workers (9), or a share of them below 1 (0.9)",
    "loss_tolerant": "true or false",
    "lanes": "a positive number",
}


def servers_of(text: object) -> tuple[str, ...]:
    items = text if isinstance(text, list) else str(text).split(",")
    return tuple(address for item in items if (address := str(item).strip()))


def network_from_environment() -> dict[str, Any]:
    """Return the settings in THC_SERVERS by name, with `servers` and `lanes`. operation_s: default THC_DEADLINE_S."""
    seconds = [field.name for field in fields(Timeouts)]
    settings = variable_settings("SERVERS", ("servers", *_KINDS, *seconds))
    for name, value in settings.items():
        if name in _KINDS and (type(value) not in _KINDS[name] or (name == "lanes" and value <= 0)):
            raise ConfigurationError(f"THC_SERVERS: {name}={value!r} must be {_ALLOWED[name]}")
    timeouts = {name: settings.pop(name) for name in seconds if name in settings}
    deadline = {"operation_s": default_deadline_s()} if timeouts else {}
    try:
        resolve_quorum(settings.get("quorum"), MAX_WORKERS)
        if timeouts:
            settings["timeouts"] = Timeouts(**deadline | timeouts)
    except ConfigurationError as error:
        raise ConfigurationError(f"THC_SERVERS: {error}") from None
    if "servers" in settings:
        settings["servers"] = servers_of(settings["servers"])
        for address in settings["servers"]:
            if not re.fullmatch(r"[\w.:%\[\]-]+", address):  # Session checks IPv6 and ports
                raise ConfigurationError(f"THC_SERVERS: {address!r} is not a server: write HOST or HOST:PORT")
    return settings


def backend_from_environment(socket: int = 0) -> UdpConfig | DpdkConfig | None:
    """Return the back end of THC_BACKEND, THC_LOCAL and THC_EAL_ARGS; None if none is set.

    socket: number among processes that share the variables, added to the port of THC_LOCAL with kernel UDP.
    """
    kind, local = variable("BACKEND"), variable("LOCAL")
    if kind not in ("", "udp", "dpdk"):
        raise ConfigurationError(f"THC_BACKEND must be udp or dpdk, not {kind!r}")
    if kind != "dpdk":
        return nth_socket(UdpConfig(local=local), socket) if local else None
    if not local:
        raise ConfigurationError("THC_BACKEND=dpdk needs THC_LOCAL: set it to this worker's IP address")
    if socket > 0:
        raise ConfigurationError("THC_BACKEND=dpdk: a DPDK device serves one process: start one on each host")
    arguments = variable("EAL_ARGS")
    try:
        return DpdkConfig(local=local, eal_args=shlex.split(arguments))
    except ValueError as error:
        raise ConfigurationError(f"THC_EAL_ARGS={arguments!r}: {error}; quote arguments as in a shell") from None


def nth_socket(backend: UdpConfig, number: int) -> UdpConfig:
    """Return the same with a port that is `number` higher; port 0 stays 0."""
    address, port = split_port(backend.local)
    if not (number and port.isdigit() and int(port)):
        return backend
    return UdpConfig(local=f"{address}:{int(port) + number}", gso=backend.gso, gro=backend.gro)


def split_port(address: str) -> tuple[str, str]:
    """Return host and port of HOST:PORT, or HOST and "". An IPv6 HOST has brackets."""
    host, _, port = address.rpartition(":")
    return (host, port) if host and not port.endswith("]") else (address, "")
