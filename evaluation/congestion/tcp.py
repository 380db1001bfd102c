"""A TCP stream between two hosts, which sends as much as it can."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from congestion.workers import Host
from thc_lab.namespaces import inside

#: Frames of a segment that is full: 1448 bytes of payload, headers of Ethernet, IP and TCP with time stamps.
FRAME_BYTES_PER_BYTE = 1514 / 1448
_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 16


class TcpStream:
    """A stream between two hosts, from enter to exit. If it stops, received() raises TimeoutError."""

    def __init__(self, sender: Host, receiver: Host) -> None:
        with inside(receiver.namespace), socket.create_server((receiver.ip, 0)) as listener:
            listener.settimeout(_TIMEOUT_S)
            address = listener.getsockname()
            with inside(sender.namespace):
                self._sending = socket.create_connection(address, timeout=_TIMEOUT_S)
            self._receiving, _ = listener.accept()
        self._receiving.settimeout(_TIMEOUT_S)
        self.received_bytes = 0
        """payload so far"""
        self._threads = [threading.Thread(target=work) for work in (self._send, self._receive)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in (self._sending, self._receiving):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._sending.close()
        self._receiving.close()

    def _send(self) -> None:
        chunk = bytes(_CHUNK_BYTES)
        with contextlib.suppress(OSError):
            while True:
                self._sending.sendall(chunk)

    def _receive(self) -> None:
        buffer = bytearray(_CHUNK_BYTES)
        with contextlib.suppress(OSError):
            while got := self._receiving.recv_into(buffer):
                self.received_bytes += got
