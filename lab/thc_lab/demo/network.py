"""How the demo's workers and servers reach each other: kernel UDP on loopback, or DPDK over shared memory (memif)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import DpdkConfig, Session, UdpConfig, has_dpdk
from byteps_thc._scheme.errors import DpdkUnavailableError
from byteps_thc._scheme.wire.layout import UDP_PORT
from thc_lab.demo.settings import DemoSettings, Scheme

#: Ethernet's, enough for the sums of 1024 codes.
MEMIF_MTU_BYTES = 1500
#: Its thc-ps and switches serve this demo alone.
RUN = "thc demo"
#: Without huge pages EAL takes ordinary memory, this much in each process.
EAL_MEMORY_MIB = 128


class Network(Protocol):
    """What worker processes need to reach the aggregators; travels to them by pickling."""

    def open_session(self, worker: int, scheme: Scheme, settings: DemoSettings) -> Session:
        """Join the job of a scheme."""


@dataclass(frozen=True)
class ServerNetwork(Network):
    """Addresses of thc-ps processes, and what a worker needs to reach them."""

    servers: tuple[str, ...]
    #: sockets of the memif devices, one per server; empty for kernel UDP
    memif_sockets: tuple[Path, ...] = ()

    @override
    def open_session(self, worker: int, scheme: Scheme, settings: DemoSettings) -> Session:
        return Session(
            self.servers,
            job=scheme.job,
            run=RUN,
            worker=worker,
            workers=settings.workers,
            config=settings.thc_config(scheme),
            loss_tolerant=settings.loss_tolerant,
            backend=self.worker_backend(worker),
        )

    def worker_backend(self, worker: int) -> UdpConfig | DpdkConfig:
        """Packet I/O of a worker."""
        if not self.memif_sockets:
            return UdpConfig(local="127.0.0.1")
        devices = [
            f"--vdev=net_memif{number},role=client,id={worker},socket={socket},socket-abstract=no"
            for number, socket in enumerate(self.memif_sockets)
        ]
        return DpdkConfig(
            local=memif_address(100 + worker),
            eal_args=(*eal_arguments(f"worker{worker}", self.memif_sockets[0].parent), *devices),
            mtu_bytes=MEMIF_MTU_BYTES,
        )


def start_servers(settings: DemoSettings, folder: Path, stack: contextlib.ExitStack) -> ServerNetwork:
    """Start settings.servers thc-ps processes, which `stack` ends. folder: for the sockets of memif devices.

    Raises DpdkUnavailableError when DPDK is asked for and not in this build, TransportError when thc-ps does not start.
    """
    options = ["--log-level", "warning", "--faults", f"drop={settings.drop}"]
    if settings.backend == "udp":
        started = [stack.enter_context(ParameterServer(options)) for _ in range(settings.servers)]
        return ServerNetwork(tuple(server.address for server in started))
    if not has_dpdk():
        raise DpdkUnavailableError("this build has no DPDK: install libdpdk-dev and build again, or use --backend udp")
    sockets = tuple(folder / f"memif{number}.sock" for number in range(settings.servers))
    started = [
        stack.enter_context(
            ParameterServer(
                [*options, "--dpdk", "--eal-args", " ".join(server_eal_arguments(socket, settings.workers))],
                ip=memif_address(1 + number),
                port=UDP_PORT,
            )
        )
        for number, socket in enumerate(sockets)
    ]
    return ServerNetwork(tuple(server.address for server in started), sockets)


def server_eal_arguments(socket: Path, workers: int) -> list[str]:
    """One memif device per worker: memif joins two ends, it is no switch."""
    devices = [
        f"--vdev=net_memif{worker},role=server,id={worker},socket={socket},socket-abstract=no"
        for worker in range(workers)
    ]
    return [*eal_arguments(socket.stem, socket.parent), *devices]


def eal_arguments(name: str, folder: Path) -> list[str]:
    """EAL without huge pages and without real devices; the prefix keeps processes apart."""
    prefix = f"{folder.name}-{name}"
    return ["--no-huge", "-m", str(EAL_MEMORY_MIB), "--no-pci", "--no-telemetry", f"--file-prefix={prefix}"]


def memif_address(host: int) -> str:
    """Return an address of the network that exists between these processes only."""
    return f"198.18.0.{host}"
