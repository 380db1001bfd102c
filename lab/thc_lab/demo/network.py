"""How the demo's workers and servers reach each other: kernel UDP over links, or DPDK over shared memory (memif)."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from byteps_thc._base.errors import DpdkUnavailableError
from byteps_thc._base.wire.layout import UDP_PORT
from byteps_thc._cli.launch import ENDS_WITH_PARENT, ParameterServer
from byteps_thc._native._comm import has_dpdk
from byteps_thc._net.session import DpdkConfig, Session, UdpConfig
from thc_lab.demo.links import NO_LINKS, Links, choose_links
from thc_lab.demo.settings import DemoSettings, Scheme
from thc_lab.namespaces import inside
from thc_lab.shaped_network import INTERFACE

#: Ethernet's, enough for the sums of 1024 codes.
MEMIF_MTU_BYTES = 1500
#: Its thc-ps and switches serve this demo alone.
RUN = "thc demo"
#: Without huge pages EAL takes ordinary memory, this much in each process.
EAL_MEMORY_MIB = 128


class Network(Protocol):
    """Lets worker processes reach each other and the aggregators; travels to them by pickling."""

    def links(self) -> Links:
        """Return the links between the workers."""
        return NO_LINKS

    def interface(self) -> str:
        """Name the workers' interface to each other."""
        return "lo"

    def on_host(self, worker: int) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        """Move the calling thread, and the threads it starts, to the worker's host."""
        return contextlib.nullcontext()

    def sent_bytes(self, worker: int) -> int | None:  # noqa: ARG002
        """Count the bytes that the worker's host has put on its link; None: the host has no link of its own."""
        return None

    def open_session(self, worker: int, scheme: Scheme, settings: DemoSettings) -> Session:
        """Join the job of a scheme."""


@dataclass(frozen=True)
class ServerNetwork(Network):
    """Addresses of thc-ps processes, and how a worker reaches them."""

    servers: tuple[str, ...]
    laid: Links
    #: sockets of the memif devices, one per server; empty for kernel UDP
    memif_sockets: tuple[Path, ...] = ()

    @override
    def links(self) -> Links:
        return self.laid

    @override
    def interface(self) -> str:
        return INTERFACE if self.laid.hosts else "lo"

    @override
    def on_host(self, worker: int) -> contextlib.AbstractContextManager[None]:
        return inside(self.laid.hosts[worker].namespace) if self.laid.hosts else contextlib.nullcontext()

    @override
    def sent_bytes(self, worker: int) -> int | None:
        return self.laid.hosts[worker].sent().bytes if self.laid.hosts else None

    @override
    def open_session(self, worker: int, scheme: Scheme, settings: DemoSettings) -> Session:
        return Session(
            self.servers,
            job=scheme.job,
            run=RUN,
            worker=worker,
            workers=settings.workers,
            codes=settings.codes(scheme),
            loss_tolerant=settings.loss_tolerant,
            backend=self.worker_backend(worker),
        )

    def worker_backend(self, worker: int) -> UdpConfig | DpdkConfig:
        """Packet I/O of a worker."""
        if not self.memif_sockets:
            return UdpConfig(local=self.laid.hosts[worker].ip if self.laid.hosts else "127.0.0.1")
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
        links = choose_links(settings.workers, settings.link_mbit, stack, required=settings.links_required)
        return ServerNetwork(_start_beside_workers(settings.servers, links, options, stack), links)
    if not has_dpdk():
        raise DpdkUnavailableError("this build has no DPDK: install libdpdk-dev and build again, or use --backend udp")
    sockets = tuple(folder / f"memif{number}.sock" for number in range(settings.servers))
    started = [
        stack.enter_context(
            ParameterServer(
                [*options, "--dpdk", "--eal-args", " ".join(server_eal_arguments(socket, settings.workers))],
                prefix=ENDS_WITH_PARENT,
                ip=memif_address(1 + number),
                port=UDP_PORT,
            )
        )
        for number, socket in enumerate(sockets)
    ]
    sentence = "Links: shared memory to thc-ps, loopback between workers, no limit: times show no gain."
    return ServerNetwork(tuple(server.address for server in started), Links((), sentence), sockets)


def _start_beside_workers(
    servers: int, links: Links, options: Sequence[str], stack: contextlib.ExitStack
) -> tuple[str, ...]:
    """Start thc-ps on the first worker's host, the second one's and so on, again from the first after the last."""
    addresses = []
    for number in range(servers):
        host = links.hosts[number % len(links.hosts)] if links.hosts else None
        with inside(host.namespace) if host else contextlib.nullcontext():
            server = ParameterServer(options, prefix=ENDS_WITH_PARENT, ip=host.ip if host else "127.0.0.1")
        addresses.append(stack.enter_context(server).address)
    return tuple(addresses)


def server_eal_arguments(socket: Path, workers: int) -> list[str]:
    """One memif device per worker: memif joins two ends, it is no switch."""
    devices = [
        f"--vdev=net_memif{worker},role=server,id={worker},socket={socket},socket-abstract=no"
        for worker in range(workers)
    ]
    return [*eal_arguments(socket.stem, socket.parent), *devices]


def eal_arguments(name: str, folder: Path) -> list[str]:
    """EAL without huge pages and without real devices; the prefix keeps processes apart."""
    return ["--no-huge", "-m", str(EAL_MEMORY_MIB), "--no-pci", "--no-telemetry", f"--file-prefix={folder.name}-{name}"]


def memif_address(host: int) -> str:
    """Return an address of the network that exists between these processes only."""
    return f"198.18.0.{host}"
