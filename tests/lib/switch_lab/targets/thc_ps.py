"""thc-ps on loopback: the software aggregator that switches are compared with."""

import itertools
import os
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from thc_scapy import PORT, TYPES, VERSION, Thc

from byteps_thc._cli.launch import ParameterServer
from switch_lab.jobs import SERVICE_IP, SERVICE_MAC, Endpoint, Job, Worker
from switch_lab.reference import Limits
from switch_lab.targets.target import PortFrame

FENCE_TIMEOUT_S = 1.0
FENCE_ATTEMPTS = 30
PACED_S = 1.0


class ThcPsTarget:
    """Workers are sockets; frames are only the outside of the datagrams that thc-ps takes and sends."""

    name = "thc-ps"
    front_ports = (1, 2, 3, 4)
    limits = Limits(tells_last=True)

    def __init__(self) -> None:
        self._server: ParameterServer | None = None
        self._workers: dict[Endpoint, Worker] = {}
        self._sockets: dict[Endpoint, socket.socket] = {}
        self._fence = _loopback_socket()
        self._questions = itertools.count(1)

    def install(self, jobs: Sequence[Job]) -> None:
        self._stop()
        with _on_one_cpu():  # inherited
            self._server = ParameterServer(stop_timeout_s=0)  # no drain
        ip, _, port = self._server.address.rpartition(":")
        self._address = (ip, int(port))
        self._workers = {worker.endpoint: worker for job in jobs for worker in job.workers}
        self._sockets = {endpoint: _loopback_socket() for endpoint in self._workers}

    def exchange(self, port: int, frame: bytes) -> list[PortFrame]:
        packet = Ether(frame)
        source = (packet[IP].src, packet[UDP].sport)
        if source not in self._sockets:
            self._sockets[source] = _loopback_socket()
            self._workers[source] = Worker(0, packet.src, source[0], source[1], port)
        with _on_one_cpu():
            self._sockets[source].sendto(bytes(packet[UDP])[8 : packet[UDP].len], self._address)
            self._wait_until_handled()
        return self._sent()

    def late(self) -> list[PortFrame]:
        select.select(self._sockets.values(), [], [], PACED_S)
        return self._sent()

    def _sent(self) -> list[PortFrame]:
        return [
            (self._workers[endpoint].switch_port, _frame(self._workers[endpoint], datagram))
            for endpoint, worker_socket in self._sockets.items()
            for datagram in _received(worker_socket)
            if Thc(datagram).message_type != TYPES["probe"]  # comes by itself, and no switch sends it
        ]

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self._stop()
        self._fence.close()

    def _wait_until_handled(self) -> None:
        # thc-ps answers in order, and loopback keeps the order of one CPU's datagrams, not of two CPUs'. An answer
        # repeats the round of its question, because answers to earlier exchanges may come late.
        asked = set()
        for _ in range(FENCE_ATTEMPTS):  # unknown jobs are answered at a limited rate
            asked.add(next(self._questions))
            self._fence.sendto(_question(max(asked)), self._address)
            while select.select([self._fence], [], [], FENCE_TIMEOUT_S)[0]:
                if any(Thc(answer).round in asked for answer in _received(self._fence)):
                    return
        raise TimeoutError(f"thc-ps did not answer {FENCE_ATTEMPTS} times")

    def _stop(self) -> None:
        for worker_socket in self._sockets.values():
            worker_socket.close()
        self._sockets.clear()
        if self._server is not None:
            self._server.stop()


@contextmanager
def _on_one_cpu() -> Iterator[None]:
    """Keep this thread, and processes it starts, on the same CPU."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _loopback_socket() -> socket.socket:
    loopback = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    loopback.bind(("127.0.0.1", 0))
    loopback.setblocking(False)
    return loopback


def _question(number: int) -> bytes:
    """Codes of a job that is not there, as long as the answer: strangers get no more than they send."""
    header = Thc(version=VERSION, message_type=TYPES["codes"], code_bits=8, payload_count=16, round=number)
    return bytes(header / Raw(bytes(16)))


def _received(from_socket: socket.socket) -> list[bytes]:
    datagrams = []
    while select.select([from_socket], [], [], 0)[0]:
        datagrams.append(from_socket.recv(65536))
    return datagrams


def _frame(worker: Worker, datagram: bytes) -> bytes:
    return bytes(
        Ether(src=SERVICE_MAC, dst=worker.mac)
        / IP(src=SERVICE_IP, dst=worker.ip)
        / UDP(sport=PORT, dport=worker.udp_port, chksum=0)
        / Raw(datagram)
    )
