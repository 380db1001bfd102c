"""Ports of a software switch: veth interfaces, a UDP socket, a function.

Interfaces: a frame may reach the switch with its UDP checksum only begun, or as several packets in one (GSO, GRO), when
the sender's interface leaves such work to hardware that a veth pair does not have. Turn these offloads off at both ends
of a veth pair: `ethtool -K DEV rx off tx off tso off gso off gro off`.
"""

import array
import fcntl
import ipaddress
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from thc_p4_model.checksums import csum16

LOG = logging.getLogger("thc_p4_model")

ETH_P_ALL = 0x0003
SOL_PACKET = 263
PACKET_ADD_MEMBERSHIP = 1
PACKET_IGNORE_OUTGOING = 23
PACKET_MR_PROMISC = 1
SO_RCVBUFFORCE = 33
SIOCETHTOOL = 0x8946
ETHTOOL_SGRO = 0x2C
RECEIVE_BUFFER_BYTES = 32 << 20
"""A window of packets from every worker, while the model takes milliseconds for each."""
MAX_FRAME_BYTES = 65535
MAX_WAITING_ANSWERS = 4096
ETHERNET_BYTES = 14
IPV4_BYTES = 20
UDP_BYTES = 8
MORE_FRAGMENTS = 0x2000
FRAGMENT_OFFSET = 0x1FFF
ETHERTYPE_IPV4 = b"\x08\x00"
PROTOCOL_UDP = 17


@dataclass
class PortStatistics:
    """Frames of one port."""

    received: int = 0
    sent: int = 0
    send_errors: int = 0
    """Frames the interface did not take, or that have no way out of this kind of port."""
    receive_errors: int = 0
    """Reads that failed (interface down), and answers lost because too many were waiting."""


class Port(Protocol):
    """A port of a software switch."""

    statistics: PortStatistics

    def fileno(self) -> int | None:
        """The file to wait for; None: frames come from sending only."""

    def receive(self) -> bytes | None:
        """The next frame, or None if none waits."""

    def send(self, frame: bytes) -> None:
        """Send a frame; failures are counted."""

    def close(self) -> None:
        """Release the port's resources."""


def disable_receive_merging(interface: str) -> None:
    """Have the kernel hand over packets one by one, as `ethtool -K DEV gro off` does.

    OSError: no such interface, or no CAP_NET_ADMIN.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        value = array.array("B", struct.pack("II", ETHTOOL_SGRO, 0))  # struct ethtool_value
        request = struct.pack("16sP16x", interface.encode(), value.buffer_info()[0])  # struct ifreq
        fcntl.ioctl(control, SIOCETHTOOL, request)


class InterfacePort:
    """An Ethernet interface, one end of a veth pair for example. Needs CAP_NET_RAW."""

    def __init__(self, interface: str) -> None:
        """Raises OSError if the interface does not exist, or without the right to open it."""
        self.statistics = PortStatistics()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        try:
            self._socket.bind((interface, 0))
            membership = struct.pack("IHH8s", socket.if_nametoindex(interface), PACKET_MR_PROMISC, 0, b"")
            self._socket.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, membership)
            self._socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            enlarge_receive_buffer(self._socket)
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """The packet socket."""
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        """The next received frame; this host's own frames do not count."""
        while True:
            try:
                frame, address = self._socket.recvfrom(MAX_FRAME_BYTES)
            except BlockingIOError:
                return None
            except OSError:  # interface down or gone: as a cable pulled out
                self.statistics.receive_errors += 1
                return None
            if address[2] != socket.PACKET_OUTGOING:
                self.statistics.received += 1
                return frame

    def send(self, frame: bytes) -> None:
        """Send a frame."""
        try:
            self._socket.send(frame)
        except OSError:  # interface down, frame longer than its MTU, queue full: a switch drops the frame
            self.statistics.send_errors += 1
        else:
            self.statistics.sent += 1

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class UdpPort:
    """A UDP socket at the switch's service address, for workers without interfaces of their own.

    A worker's datagram becomes an Ethernet/IPv4/UDP frame from its address to the service's; a UDP frame from the
    switch goes to the address it carries. Everything else (ARP, other traffic) has no way through and counts as an
    error. Workers have made-up MAC addresses: 02:00 and their IPv4 address.
    """

    def __init__(self, address: str, port: int, mac: bytes) -> None:
        """address, port: the workers' destination. mac: the service's MAC address."""
        self.statistics = PortStatistics()
        self._mac = mac
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((address, port))
            enlarge_receive_buffer(self._socket)
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise
        self.address: tuple[str, int] = self._socket.getsockname()

    def fileno(self) -> int:
        """The UDP socket."""
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        """The next datagram as a frame."""
        try:
            payload, sender = self._socket.recvfrom(MAX_FRAME_BYTES)
        except BlockingIOError:
            return None
        except OSError:  # the error of an earlier datagram, such as an unreachable host
            self.statistics.receive_errors += 1
            return None
        self.statistics.received += 1
        return udp_frame(self._mac, self.address, sender, payload)

    def send(self, frame: bytes) -> None:
        """Send the payload of a UDP frame to its destination."""
        datagram = udp_datagram(frame)
        try:
            if datagram is None:
                raise OSError("not a UDP frame")
            self._socket.sendto(*datagram)
        except OSError:
            self.statistics.send_errors += 1
        else:
            self.statistics.sent += 1

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class FunctionPort:
    """A port whose other end is a function from a frame to its answers: a CPU port with the agent behind it."""

    def __init__(self, answer: Callable[[bytes], Iterable[bytes]]) -> None:
        self.statistics = PortStatistics()
        self._answer = answer
        self._answers: deque[bytes] = deque()

    def fileno(self) -> None:
        """Nothing to wait for."""

    def receive(self) -> bytes | None:
        """The next answer."""
        if not self._answers:
            return None
        self.statistics.received += 1
        return self._answers.popleft()

    def send(self, frame: bytes) -> None:
        """Call the function. Its exceptions are logged and cost this frame's answers; so does a full queue."""
        self.statistics.sent += 1
        try:
            answers = list(self._answer(frame))
        except Exception:
            self.statistics.send_errors += 1
            LOG.exception("the function behind a port failed")
            return
        kept = answers[: MAX_WAITING_ANSWERS - len(self._answers)]
        self._answers.extend(kept)
        self.statistics.receive_errors += len(answers) - len(kept)

    def close(self) -> None:
        """Nothing to release."""


def enlarge_receive_buffer(sock: socket.socket) -> None:
    """Set it as large as bursts need; with CAP_NET_ADMIN past the system's limit."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)


def udp_frame(mac: bytes, to: tuple[str, int], sender: tuple[str, int], payload: bytes) -> bytes:
    """An Ethernet frame of a datagram; without UDP checksum."""
    source, destination = ipaddress.IPv4Address(sender[0]).packed, ipaddress.IPv4Address(to[0]).packed
    length = IPV4_BYTES + UDP_BYTES + len(payload)
    ipv4 = struct.pack("!BBHHHBBH", 0x45, 0, length, 0, 0x4000, 64, PROTOCOL_UDP, 0) + source + destination
    ipv4 = ipv4[:10] + csum16(ipv4).to_bytes(2, "big") + ipv4[12:]
    udp = struct.pack("!HHHH", sender[1], to[1], UDP_BYTES + len(payload), 0)
    return b"".join((mac, b"\x02\x00", source, ETHERTYPE_IPV4, ipv4, udp, payload))


def udp_datagram(frame: bytes) -> tuple[bytes, tuple[str, int]] | None:
    """Payload and destination of a whole UDP datagram over IPv4; None for fragments, cut and other frames."""
    udp = ETHERNET_BYTES + IPV4_BYTES
    if frame[12:14] != ETHERTYPE_IPV4 or len(frame) < udp + UDP_BYTES or frame[14] != 0x45 or frame[23] != PROTOCOL_UDP:
        return None
    fragment = int.from_bytes(frame[20:22], "big") & (MORE_FRAGMENTS | FRAGMENT_OFFSET)
    port, length = struct.unpack_from("!HH", frame, udp + 2)
    if fragment or not UDP_BYTES <= length <= len(frame) - udp:
        return None
    return frame[udp + UDP_BYTES : udp + length], (str(ipaddress.IPv4Address(frame[30:34])), port)
