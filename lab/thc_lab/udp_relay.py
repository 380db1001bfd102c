"""A UDP relay between workers and a server on loopback, which loses, doubles, delays and spoils datagrams."""

import random
import select
import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

Address = tuple[str, int]

MAX_DATAGRAM_BYTES = 65535
#: A delayed datagram is forwarded after so long at the latest.
HOLD_S = 0.01


@dataclass(frozen=True)
class RelayFaults:
    """Probabilities of a datagram, up and down each."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0


class UdpRelay:
    """Relays while it is open. server: "IP:PORT". Every worker gets an upstream socket of its own.

    port: that workers send to; 0: any free one.
    """

    def __init__(
        self,
        server: str,
        faults: RelayFaults | None = None,
        *,
        seed: int = 1,
        port: int = 0,
    ) -> None:
        ip, _, server_port = server.rpartition(":")
        self._server: Address = (ip, int(server_port))
        self.faults = faults or RelayFaults()
        self._random = random.Random(seed)
        self._front = _new_socket(port)
        #: "IP:PORT" for workers
        self.address = "{}:{}".format(*self._front.getsockname())
        self._upstream: dict[Address, socket.socket] = {}
        self._held: list[Callable[[], None]] = []
        self.counters: Counter[str] = Counter()
        #: why the relay has stopped
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="udp-relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop relaying."""
        self._stop.set()
        self._thread.join(10)
        for each in (self._front, *self._upstream.values()):
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._take_turn()
        except Exception as failure:
            self.failure = failure

    def _take_turn(self) -> None:
        ready, _, _ = select.select([self._front, *self._upstream.values()], [], [], HOLD_S)
        for each in ready:
            self._relay_all_from(each)
        held, self._held = self._held, []
        for send in held:
            send()

    def _relay_all_from(self, source: socket.socket) -> None:
        workers = {upstream: worker for worker, upstream in self._upstream.items()}
        while True:
            try:
                datagram, sender = source.recvfrom(MAX_DATAGRAM_BYTES)
            except (BlockingIOError, ConnectionRefusedError):
                return
            if source is self._front:
                upstream = self._upstream.get(sender) or self._upstream.setdefault(sender, _new_socket())
                self._relay(True, datagram, upstream, self._server)
            else:
                self._relay(False, datagram, self._front, workers[source])

    def _relay(self, is_up: bool, datagram: bytes, by: socket.socket, to: Address) -> None:
        self.counters["up" if is_up else "down"] += 1
        fault = self._draw()
        self.counters[fault] += fault != ""
        if fault == "drop":
            return
        if fault == "corrupt":
            spoiled = bytearray(datagram)
            spoiled[self._random.randrange(len(spoiled))] ^= 1 << self._random.randrange(8)
            datagram = bytes(spoiled)

        def send() -> None:
            try:
                by.sendto(datagram, to)
            except (BlockingIOError, ConnectionRefusedError):
                self.counters["send_errors"] += 1

        if fault == "reorder":
            self._held.append(send)
            return
        send()
        if fault == "duplicate":
            self._held.append(send)

    def _draw(self) -> str:
        point = self._random.random()
        for fault in ("drop", "duplicate", "reorder", "corrupt"):
            point -= getattr(self.faults, fault)
            if point < 0:
                return fault
        return ""


def _new_socket(port: int = 0) -> socket.socket:
    new = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        new.bind(("127.0.0.1", port))
    except OSError:
        new.close()
        raise
    new.setblocking(False)
    return new
