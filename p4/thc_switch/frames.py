"""Ethernet / IPv4 / UDP around the agent's messages."""

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

from byteps_thc._base.wire.layout import UDP_PORT
from thc_switch.description import Peer, SwitchDescription

_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")
_ETHERTYPE_IPV4 = 0x0800
_PROTOCOL_UDP = 17
_TTL = 64
_DONT_FRAGMENT = 0x4000


@dataclass(frozen=True)
class Datagram:
    """A UDP datagram and the addresses around it."""

    src_mac: bytes
    dst_mac: bytes
    src_ip: IPv4Address
    dst_ip: IPv4Address
    src_port: int
    dst_port: int
    payload: bytes

    @property
    def source(self) -> str:
        """IP:PORT of the sender."""
        return f"{self.src_ip}:{self.src_port}"

    def answer(self, payload: bytes) -> "Datagram":
        """Return a datagram back to the sender."""
        return Datagram(self.dst_mac, self.src_mac, self.dst_ip, self.src_ip, self.dst_port, self.src_port, payload)


def to_station(switch: SwitchDescription, station: Peer, payload: bytes) -> Datagram:
    """Return a datagram from the switch's service address to a worker or a root."""
    return Datagram(
        src_mac=_mac_bytes(switch.mac),
        dst_mac=_mac_bytes(station.mac),
        src_ip=switch.ip,
        dst_ip=station.ip,
        src_port=UDP_PORT,
        dst_port=station.udp_port,
        payload=payload,
    )


def parse(frame: bytes) -> Datagram | None:
    """Return the datagram of a frame; None without one: other protocols, options, fragments, cut off."""
    headers_bytes = _ETHERNET.size + _IPV4.size + _UDP.size
    if len(frame) < headers_bytes:
        return None
    dst_mac, src_mac, ethertype = _ETHERNET.unpack_from(frame)
    version, _, _, _, fragment, _, protocol, _, src_ip, dst_ip = _IPV4.unpack_from(frame, _ETHERNET.size)
    if ethertype != _ETHERTYPE_IPV4 or version != 0x45 or protocol != _PROTOCOL_UDP or fragment & 0x3FFF:
        return None
    src_port, dst_port, udp_bytes, _ = _UDP.unpack_from(frame, _ETHERNET.size + _IPV4.size)
    end = headers_bytes - _UDP.size + udp_bytes
    if udp_bytes < _UDP.size or end > len(frame):
        return None
    payload = frame[headers_bytes:end]  # Ethernet pads short frames
    return Datagram(src_mac, dst_mac, IPv4Address(src_ip), IPv4Address(dst_ip), src_port, dst_port, payload)


def build(datagram: Datagram) -> bytes:
    """Return the frame of a datagram, without a UDP checksum, like the switch's own answers."""
    udp_bytes = _UDP.size + len(datagram.payload)
    src_ip, dst_ip = datagram.src_ip.packed, datagram.dst_ip.packed
    fields = (0x45, 0, _IPV4.size + udp_bytes, 0, _DONT_FRAGMENT, _TTL, _PROTOCOL_UDP)
    ipv4 = _IPV4.pack(*fields, _checksum(_IPV4.pack(*fields, 0, src_ip, dst_ip)), src_ip, dst_ip)
    udp = _UDP.pack(datagram.src_port, datagram.dst_port, udp_bytes, 0)
    return _ETHERNET.pack(datagram.dst_mac, datagram.src_mac, _ETHERTYPE_IPV4) + ipv4 + udp + datagram.payload


def _mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def _checksum(header: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
