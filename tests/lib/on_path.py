"""An attacker between a worker and thc-ps: sees every datagram, and sends its own in the name of either."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

#: What the attacker does with a datagram on its way to the worker or server: the datagrams sent on instead.
Tamper = Callable[[bytes], list[bytes]]


def pass_on(datagram: bytes) -> list[bytes]:
    """Do nothing to it."""
    return [datagram]


class OnPath:
    """A relay that a worker takes for the server, and the server for the worker. A context manager.

    up, down: may be set at any time. seen_up, seen_down: every datagram, in order.
    """

    def __init__(self, server: str, up: Tamper = pass_on, down: Tamper = pass_on) -> None:
        ip, port = server.split(":")
        self.up, self.down = up, down
        self.seen_up: list[bytes] = []
        self.seen_down: list[bytes] = []
        self._to_worker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._to_worker.bind(("127.0.0.1", 0))
        self._to_server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._to_server.connect((ip, int(port)))
        for end in (self._to_worker, self._to_server):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._worker: tuple[str, int] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._relay, daemon=True)
        #: IP:PORT for the worker
        self.address = f"127.0.0.1:{self._to_worker.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._to_worker.close()
        self._to_server.close()

    def send_to_worker(self, datagram: bytes) -> None:
        """Send in the server's name."""
        if self._worker is not None:
            self._to_worker.sendto(datagram, self._worker)

    def _relay(self) -> None:
        while not self._stop.is_set():
            ready, _, _ = select.select([self._to_worker, self._to_server], [], [], 0.05)
            if self._to_worker in ready:
                datagram, self._worker = self._to_worker.recvfrom(65536)
                self.seen_up.append(datagram)
                for changed in self.up(datagram):
                    self._to_server.send(changed)
            if self._to_server in ready:
                datagram = self._to_server.recv(65536)
                self.seen_down.append(datagram)
                for changed in self.down(datagram):
                    self.send_to_worker(changed)
