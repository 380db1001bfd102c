"""An attacker between a worker and thc-ps: sees every datagram, and sends its own in the name of either."""

import socket
from collections.abc import Callable

from thc_lab.udp_relay import Address, UdpRelay

#: The attacker's treatment of a datagram on its way to the worker or server: returns the datagrams to send instead.
Tamper = Callable[[bytes], list[bytes]]


def pass_on(datagram: bytes) -> list[bytes]:
    return [datagram]


class OnPath(UdpRelay):
    """A relay between workers and server. up, down: may be set at any time. seen_down: datagrams to workers."""

    def __init__(self, server: str, up: Tamper = pass_on, down: Tamper = pass_on) -> None:
        self.up, self.down = up, down
        self.seen_down: list[bytes] = []
        super().__init__(server)

    def send_to_worker(self, datagram: bytes) -> None:
        """Send in the server's name, to all."""
        for worker in self._upstream:
            self._front.sendto(datagram, worker)

    def _relay(self, is_up: bool, datagram: bytes, by: socket.socket, to: Address) -> None:
        if not is_up:
            self.seen_down.append(datagram)
        for changed in (self.up if is_up else self.down)(datagram):
            by.sendto(changed, to)
