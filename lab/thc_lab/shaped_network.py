"""Hosts of a benchmark: network namespaces on one Ethernet switch (a Linux bridge), every link shaped to a rate.

    host 0 --- eth0 ══ port0 --- bridge --- port1 ══ eth0 --- host 1

A link is a veth pair, and packets that leave either end pass a token bucket (`tc qdisc ... tbf`): eth0 shapes the
host's packets and the bridge's port those for the host. Rates count Ethernet frames without preamble and check
sequence. Frames are 1514 bytes at most, but the interfaces segment them, as a network card does: TSO and UDP GSO pass
up to 64 KiB to the kernel at a time, and the token bucket counts every header that would be on the wire.
"""

import fcntl
import json
import socket
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from thc_lab.namespaces import Cable, CableEnd, Namespaces, command_inside, connect, inside

INTERFACE = "eth0"
MTU_BYTES = 1500
_NETWORK = "10.78.0.0/24"
_COMMAND_TIMEOUT_S = 10.0
_STREAM_TIMEOUT_S = 30.0
#: A GSO packet of 64 KiB and the headers of its 45 frames must fit into the bucket, or the kernel cuts it up.
_MIN_BURST_BYTES = 72_000
#: Timers are late by up to this much; the bucket holds packets meanwhile.
_BURST_S = 0.3e-3
#: Waiting time of a full queue: 1.25 MB at 1 Gb/s, about a port's share in a switch with a shared buffer.
_QUEUE_S = 10e-3
_MIN_QUEUE_BYTES = 512 << 10


@dataclass(frozen=True)
class LinkCount:
    """Counts of one end of a link, headers of all frames included."""

    bytes: int
    packets: int
    drops: int

    def __sub__(self, before: "LinkCount") -> "LinkCount":
        return LinkCount(self.bytes - before.bytes, self.packets - before.packets, self.drops - before.drops)


class Host:
    """A namespace with one interface, and the switch's port it is connected to."""

    def __init__(self, namespace: str, switch: str, number: int) -> None:
        self.namespace = namespace
        self.ip = f"10.78.0.{1 + number}"
        self.number = number
        self._switch = switch

    @property
    def port(self) -> str:
        """The switch's interface to this host."""
        return f"port{self.number}"

    def command(self) -> list[str]:
        """The words before a command that run it on this host."""
        return command_inside(self.namespace)

    def connect(self) -> None:
        """Lay the cable to the switch."""
        own = CableEnd(self.namespace, INTERFACE, f"02:00:00:04:00:{1 + self.number:02x}", f"{self.ip}/24")
        far = CableEnd(self._switch, self.port, f"02:00:00:04:01:{1 + self.number:02x}")
        connect(Cable(own, far, offloads=True, mtu_bytes=MTU_BYTES))
        run_inside(self._switch, "ip", "link", "set", self.port, "master", "bridge")
        # Linux's default, whatever this machine's own setting is (BBR paces by itself and fills no queue).
        run_inside(self.namespace, "ip", "route", "replace", _NETWORK, "dev", INTERFACE, "congctl", "cubic")

    def shape(self, bits_per_s: float, queue_bytes: int | None = None) -> None:
        """Let the link carry that much in each direction, with a queue of 10 ms or 512 KiB unless a size is given."""
        bytes_per_s = bits_per_s / 8
        burst_bytes = max(_MIN_BURST_BYTES, int(bytes_per_s * _BURST_S))
        if queue_bytes is None:
            queue_bytes = max(_MIN_QUEUE_BYTES, int(bytes_per_s * _QUEUE_S))
        for namespace, interface in self._ends():
            run_inside(
                namespace, "tc", "qdisc", "replace", "dev", interface, "root", "tbf",
                "rate", f"{int(bits_per_s)}bit", "burst", str(burst_bytes), "limit", str(queue_bytes),
            )  # fmt: skip

    def unshape(self) -> None:
        """Let a shaped link carry as much as the processor does again."""
        for namespace, interface in self._ends():
            run_inside(namespace, "tc", "qdisc", "delete", "dev", interface, "root")

    def sent(self) -> LinkCount:
        """The host's count on its link since the link was shaped."""
        return _count(self.namespace, INTERFACE)

    def received(self) -> LinkCount:
        """The switch's count on the host's link since then; drops are a full port's."""
        return _count(self._switch, self.port)

    def _ends(self) -> tuple[tuple[str, str], ...]:
        """Namespace and interface of both ends of the link."""
        return (self.namespace, INTERFACE), (self._switch, self.port)


class ShapedNetwork:
    """Hosts on one switch; a context manager that removes them. ConfigurationError without root (see Namespaces).

    name: distinguishes networks that this process has at the same time.
    """

    def __init__(self, hosts: int, name: str = "") -> None:
        self._namespaces = Namespaces().__enter__()
        try:
            switch = self._namespaces.add(f"{name}bridge")
            run_inside(switch, "ip", "link", "add", "bridge", "type", "bridge", "forward_delay", "0", "stp_state", "0")
            run_inside(switch, "ip", "link", "set", "bridge", "addrgenmode", "none", "up")
            self.hosts = [Host(self._namespaces.add(f"{name}host{number}"), switch, number) for number in range(hosts)]
            for host in self.hosts:
                host.connect()
        except BaseException:
            self._namespaces.__exit__()
            raise

    def __enter__(self) -> "ShapedNetwork":
        return self

    def __exit__(self, *_: object) -> None:
        self._namespaces.__exit__()


def tcp_rate(pairs: Sequence[tuple[Host, Host]], seconds: float) -> float:
    """Payload bits per second of TCP streams from the first to the second host of each pair, all at once, on average.

    Raises TimeoutError or another OSError when a stream stops.
    """
    rates = [0.0] * len(pairs)

    def stream(index: int) -> None:
        rates[index] = _stream_rate(*pairs[index], seconds)

    threads = [threading.Thread(target=stream, args=(index,)) for index in range(len(pairs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if 0.0 in rates:
        raise TimeoutError("a TCP stream between two hosts failed; see the traceback above")
    return sum(rates) / len(rates)


def _stream_rate(sender: Host, receiver: Host, seconds: float) -> float:
    """Payload bits per second of one TCP stream, counted at the receiver after a fifth of the time."""
    with inside(receiver.namespace), socket.create_server((receiver.ip, 0)) as listener:
        listener.settimeout(_STREAM_TIMEOUT_S)
        port = listener.getsockname()[1]
        sending = threading.Thread(target=_send_stream, args=(sender, receiver.ip, port, seconds))
        sending.start()
        connection, _ = listener.accept()
    buffer = bytearray(1 << 20)
    count = 0
    with connection:
        connection.settimeout(_STREAM_TIMEOUT_S)
        start = time.perf_counter()
        while got := connection.recv_into(buffer):
            if time.perf_counter() - start < seconds / 5:  # slow start
                first, count = time.perf_counter(), -_unread_bytes(connection)
            else:
                count += got
        elapsed = time.perf_counter() - first
    sending.join()
    return count * 8 / elapsed


def _unread_bytes(connection: socket.socket) -> int:
    """Bytes that have arrived already: a reader kept from running finds them all at once."""
    unread: int
    (unread,) = struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, bytes(4)))
    return unread


def _send_stream(sender: Host, ip: str, port: int, seconds: float) -> None:
    chunk = memoryview(bytes(1 << 20))
    with inside(sender.namespace):
        connection = socket.create_connection((ip, port), timeout=_STREAM_TIMEOUT_S)
    with connection:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            connection.sendall(chunk)


def _count(namespace: str, interface: str) -> LinkCount:
    # The queue's counters, because the interface's own count a GSO packet's headers once.
    (qdisc,) = json.loads(run_inside(namespace, "tc", "-s", "-j", "qdisc", "show", "dev", interface))
    return LinkCount(qdisc["bytes"], qdisc["packets"], qdisc["drops"])


def run_inside(namespace: str, *command: str) -> str:
    """Run a command in a namespace and return its output; CalledProcessError if it fails."""
    return subprocess.run(
        [*command_inside(namespace), *command],
        stdout=subprocess.PIPE,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=True,
    ).stdout
