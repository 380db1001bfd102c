"""Everything that is not for the aggregator is bridged and routed."""

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_RR
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Raw
from switch_lab.jobs import SERVICE_IP, SERVICE_MAC, Job
from switch_lab.lab import Lab
from switch_lab.targets.model import ModelTarget
from switch_lab.targets.switch import ROUTED_NETWORK, STATION_MACS
from thc_scapy import PORT, Thc

BROADCAST = "ff:ff:ff:ff:ff:ff"
UNKNOWN = "02:00:00:00:bb:01"
FROM, TO = STATION_MACS
THC = Thc(version=1, message_type=5, code_bits=4, value_bits=8, payload_count=128) / Raw(bytes(range(64)))
PACKETS = {
    "udp": IP(src="10.9.0.1", dst="10.9.0.2") / UDP(sport=1, dport=2) / Raw(b"data"),
    "tcp": IP(src="10.9.0.1", dst="10.9.0.2") / TCP(sport=1, dport=80) / Raw(b"data" * 300),
    "icmp": IP(src="10.9.0.1", dst="10.9.0.2") / ICMP() / Raw(b"ping"),
    "arp": ARP(psrc="10.9.0.1", pdst="10.9.0.2"),
    "arp_reply": ARP(op=2, psrc="10.9.0.1", pdst="10.9.0.2", hwdst=TO),
    "ipv6": IPv6(src="fe80::1", dst="fe80::2") / UDP(sport=PORT, dport=PORT) / Raw(b"data"),
    "vlan": Dot1Q(vlan=7) / IP(src="10.9.0.1", dst=SERVICE_IP) / UDP(dport=PORT) / THC,
    "other_ethertype": Raw(bytes(50)),
    "empty": Raw(b""),
    "ip_options": IP(src="10.9.0.1", dst="10.9.0.2", options=[IPOption_RR()]) / UDP(sport=1, dport=2) / Raw(b"x"),
    "fragment": IP(src="10.9.0.1", dst="10.9.0.2", frag=100, proto=17) / Raw(bytes(300)),
    "full_size": IP(src="10.9.0.1", dst="10.9.0.2") / UDP(sport=1, dport=2) / Raw(bytes(1472)),
    # Another aggregator in the same network, with internal fields of its own.
    "thc_for_another_server": IP(src="10.9.0.1", dst="10.9.0.2") / UDP(sport=40000, dport=PORT) / THC,
    "thc_of_another_switch": IP(src="10.9.0.1", dst="10.9.0.2")
    / UDP(sport=40000, dport=PORT)
    / Thc(bytes(Thc(version=1, message_type=5, switch_pass=8, switch_step=8)) + bytes(64)),
    "thc_too_short": IP(src="10.9.0.1", dst="10.9.0.2") / UDP(sport=40000, dport=PORT) / Raw(b"\x01\x05"),
    "thc_of_an_aggregator": IP(src="10.9.0.1", dst="10.9.0.2") / UDP(sport=PORT, dport=40000) / THC,
}


@pytest.fixture
def bridge(switch):
    """The switch with its stations and one job, and the ports of the stations."""
    Lab(switch, [Job.make(1, 4, switch.front_ports)])
    return switch, switch.front_ports[0], switch.front_ports[-1]


@pytest.mark.parametrize("name", PACKETS)
def test_known_station(bridge, name):
    """Out by its port, and not a bit changed."""
    switch, port, other = bridge
    frame = bytes(Ether(src=FROM, dst=TO) / PACKETS[name])
    assert switch.exchange(port, frame) == [(other, frame)]
    back = bytes(Ether(src=TO, dst=FROM) / PACKETS[name])
    assert switch.exchange(other, back) == [(port, back)]


def test_workers_are_stations(bridge):
    switch, port, _ = bridge
    worker = Job.make(1, 4, switch.front_ports).workers[1]
    frame = bytes(Ether(src=FROM, dst=worker.mac) / PACKETS["udp"])
    assert switch.exchange(port, frame) == [(worker.switch_port, frame)]


@pytest.mark.parametrize("name", ["udp", "arp", "other_ethertype", "thc_for_another_server"])
@pytest.mark.parametrize("to", [UNKNOWN, BROADCAST, "01:00:5e:00:00:01"])
def test_flooding(bridge, to, name):
    """Unknown stations, broadcast and multicast: one copy for every other port, none back."""
    switch, port, other = bridge
    frame = bytes(Ether(src=FROM, dst=to) / PACKETS[name])
    for ingress in (port, other):
        others = sorted(set(switch.front_ports) - {ingress})
        assert sorted(switch.exchange(ingress, frame)) == [(out, frame) for out in others]


def test_arp_for_the_aggregator(bridge):
    switch, port, _ = bridge
    request = Ether(src=FROM, dst=BROADCAST) / ARP(hwsrc=FROM, psrc="10.0.1.77", pdst=SERVICE_IP)
    ((out, raw),) = switch.exchange(port, bytes(request))
    reply = Ether(raw)
    assert out == port
    assert (reply.src, reply.dst) == (SERVICE_MAC, FROM)
    arp = reply[ARP]
    assert (arp.op, arp.hwsrc, arp.psrc, arp.hwdst, arp.pdst) == (2, SERVICE_MAC, SERVICE_IP, FROM, "10.0.1.77")


def test_arp_for_others_is_flooded_and_not_answered(bridge):
    switch, port, _ = bridge
    request = bytes(Ether(src=FROM, dst=BROADCAST) / ARP(hwsrc=FROM, psrc="10.0.1.77", pdst="10.0.255.253"))
    assert {frame for _, frame in switch.exchange(port, request)} == {request}


@pytest.mark.parametrize("name", ["udp", "tcp", "icmp", "fragment", "ip_options", "thc_for_another_server"])
def test_routing(bridge, name):
    """To the router's MAC and a network with a route: new MAC addresses, TTL one less, the rest as it was."""
    switch, port, other = bridge
    packet = Ether(src=FROM, dst=SERVICE_MAC) / PACKETS[name]
    packet[IP].dst = ROUTED_NETWORK.replace("0/24", "9")
    packet[IP].ttl = 17
    packet = Ether(bytes(packet))
    ((out, raw),) = switch.exchange(port, bytes(packet))
    expected = packet.copy()
    expected.src, expected.dst, expected[IP].ttl = SERVICE_MAC, TO, 16
    del expected[IP].chksum
    assert (out, raw) == (other, bytes(expected))


def test_packets_that_end_at_the_router(bridge):
    """With their TTL, without a route, and at ports of the aggregator's address where nobody listens."""
    switch, port, _ = bridge
    packets = [IP(src="10.9.0.1", dst="192.0.2.9", ttl=ttl) / UDP() / Raw(b"x") for ttl in (0, 1)]
    packets += [IP(src="10.9.0.1", dst="198.51.100.1") / UDP() / Raw(b"x")]
    packets += [IP(src="10.9.0.1", dst=SERVICE_IP) / UDP(dport=dport) / THC for dport in (22, PORT + 1)]
    for packet in packets:
        assert switch.exchange(port, bytes(Ether(src=FROM, dst=SERVICE_MAC) / packet)) == [], packet.summary()


@pytest.mark.parametrize("size_bytes", [0, 1, 13])
def test_runts(bridge, size_bytes):
    switch, port, _ = bridge
    if not isinstance(switch, ModelTarget):
        pytest.skip("a cable does not carry less than an Ethernet header")
    assert switch.exchange(port, bytes(Ether(src=FROM, dst=TO))[:size_bytes]) == []
