"""Workers that follow no protocol, and packets that are damaged in any way (Hypothesis)."""

from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet
from switch_lab.jobs import CODES_PER_PACKET, NORMS_PER_PACKET, SERVICE_IP, SERVICE_MAC, Job
from switch_lab.lab import Lab
from switch_lab.targets.target import Target
from thc_scapy import PORT, TYPES, WIRE, Thc

# The same examples in every run; the slow tests draw new ones.
QUICK = settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
THOROUGH = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class Send:
    """A well-formed packet of any worker, for any slot and round."""

    job: int
    worker: int
    slot: int
    round: int
    norm: bool
    chunk: int
    retransmit: bool
    seed: int

    def packet(self, lab: Lab) -> Packet:
        job = lab.jobs[self.job]
        worker = job.workers[self.worker % len(job.workers)]
        numbers = np.random.default_rng(self.seed)
        fields = {"round": self.round, "chunk": self.chunk, "retransmit": self.retransmit}
        if self.norm:
            words = numbers.integers(0, 1 << 31, NORMS_PER_PACKET, dtype=np.uint32)  # no sign bits: thc-ps drops them
            return job.norms(worker, words.view(np.float32), slot=0, **fields)
        codes = numbers.integers(0, 16, CODES_PER_PACKET, dtype=np.uint8)
        return job.codes(worker, codes, slot=job.first_code_slot + self.slot, **fields)


# Few slots, rounds and chunks, so that packets meet; rounds on both sides of the wrap-around.
ROUNDS = [2**32 - 3, 2**32 - 2, 2**32 - 1, 1, 2, 3]
SENDS = st.builds(
    Send,
    job=st.integers(0, 1),
    worker=st.integers(0, 3),
    slot=st.integers(0, 1),
    round=st.sampled_from(ROUNDS),
    norm=st.booleans(),
    chunk=st.sampled_from([0, 0, 0, 1]),
    retransmit=st.booleans(),
    seed=st.integers(0, 3),
)


def lawless(target: Target, sends: list[Send]) -> None:
    """Workers keep no order and no window, and all answers are the reference's."""
    lab = Lab(target, [Job.make(1, 3, target.front_ports), Job.make(2, 4, target.front_ports, quorum=2)])
    for send in sends:
        lab.send(send.packet(lab))


@given(sends=st.lists(SENDS, min_size=30, max_size=60))
@QUICK
def test_lawless_workers(target, sends):
    lawless(target, sends)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@given(sends=st.lists(SENDS, min_size=30, max_size=120))
@THOROUGH
def test_lawless_workers_at_length(target, sends):
    lawless(target, sends)


def values(bits: int) -> st.SearchStrategy[int]:
    """Values of a field: the ends, single bits, anything."""
    return st.one_of(
        st.sampled_from([0, 1, 2**bits - 1]),
        st.integers(0, bits - 1).map(lambda bit: 1 << bit),
        st.integers(0, 2**bits - 1),
    )


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, object]:
    """Draw a kind of damage to a packet, and its values."""
    kind = draw(st.sampled_from(["field", "field", "byte", "cut", "grow", "udp_length", "ip"]))
    match kind:
        case "field":
            field = draw(st.sampled_from(WIRE["header"]))
            return kind, (field["name"], draw(values(field["bits"])))
        case "byte":
            return kind, (draw(st.integers(0, 31)), draw(st.integers(1, 255)))
        case "cut" | "grow":
            return kind, draw(st.integers(1, 160))
        case "udp_length":
            return kind, draw(values(16))
    name = draw(st.sampled_from(["dst", "proto", "flags", "frag", "len", "version", "ihl", "tos", "ttl", "id"]))
    bits = {"flags": 3, "frag": 13, "version": 4, "ihl": 4, "len": 16, "id": 16}.get(name, 8)
    number = draw(values(bits))
    return kind, (name, f"10.0.255.{number}" if name == "dst" else number)


def damaged(packet: Packet, damage: tuple[str, object]) -> bytes:
    """The frame after the damage, with a right IPv4 header checksum: others do not get past a NIC."""
    packet = Ether(bytes(packet))
    kind, how = damage
    match kind:
        case "field":
            setattr(packet[Thc], *how)
        case "byte":
            position, change = how
            header = bytearray(bytes(packet[Thc]))
            header[position] ^= change
            packet[UDP].remove_payload()
            packet = packet / bytes(header)
        case "cut" | "grow":
            data = bytes(packet[UDP].payload)
            packet[UDP].remove_payload()
            packet = packet / (data[:-how] if kind == "cut" else data + bytes(how))
            del packet[UDP].len
            del packet[IP].len
        case "udp_length":
            packet[UDP].len = how
        case "ip":
            setattr(packet[IP], *how)
    del packet[IP].chksum
    return bytes(packet)


def expected_datagram(frame: bytes) -> bytes | None:
    """The datagram that the frame brings to the aggregator's slots, by the letter of the RFCs; None: it brings none."""
    ip, udp = frame[14:34], frame[34:42]
    total, length = int.from_bytes(ip[2:4], "big"), int.from_bytes(udp[4:6], "big")
    fragment = int.from_bytes(ip[6:8], "big") & 0x3FFF
    is_ours = ip[16:20] == bytes(map(int, SERVICE_IP.split(".")))
    if ip[0] != 0x45 or ip[9] != 17 or fragment or not is_ours or int.from_bytes(udp[2:4], "big") != PORT:
        return None
    if total != length + 20 or length < 8 or len(frame) < 14 + total:
        return None
    return frame[42 : 34 + length]


def damage_between(target: Target, damage: tuple[str, object], norm: bool, retransmit: bool) -> None:
    lab = Lab(target, [Job.make(1, 3, target.front_ports)])
    job = lab.job
    codes = np.random.default_rng(1).integers(0, 16, (3, CODES_PER_PACKET), dtype=np.uint8)
    words = np.random.default_rng(1).integers(0, 2**31, (3, NORMS_PER_PACKET), dtype=np.uint32)
    sends = [
        lambda worker, **fields: job.codes(worker, codes[worker.worker_id], **fields),
        lambda worker, **fields: job.norms(worker, words[worker.worker_id].view(np.float32), **fields),
    ]
    for send in sends:
        lab.send(send(job.workers[0]))
    worker = job.workers[1]
    raw = damaged(sends[norm](worker, retransmit=retransmit), damage)
    datagram = expected_datagram(raw)
    if datagram is None:
        for _, frame in target.exchange(worker.switch_port, raw):  # forwarded like anything else, but no answer
            assert Ether(frame).src != SERVICE_MAC or Ether(frame)[IP].src != SERVICE_IP
    elif len(datagram) >= 32 and datagram[1] not in (TYPES["norm"], TYPES["codes"]):
        # For the agent (HELLO, GOODBYE), which has tests of its own, or for nobody; the slots are not its business.
        answers = [Ether(frame) for _, frame in target.exchange(worker.switch_port, raw)]
        assert all(answer[Thc].message_type == TYPES["error"] for answer in answers)
    else:
        lab.send_raw(worker, raw)
    for send in sends:
        for worker in job.workers:
            lab.send(send(worker, retransmit=True))


@given(damage=damages(), norm=st.booleans(), retransmit=st.booleans())
@settings(parent=QUICK, max_examples=40)
def test_damaged_packets(switch, damage, norm, retransmit):
    damage_between(switch, damage, norm, retransmit)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@given(damage=damages(), norm=st.booleans(), retransmit=st.booleans())
@settings(parent=THOROUGH, max_examples=300)
def test_damaged_packets_at_length(switch, damage, norm, retransmit):
    damage_between(switch, damage, norm, retransmit)


@given(tail=st.binary(max_size=600))
@settings(parent=QUICK, max_examples=30)
def test_random_bytes_after_the_addresses(switch, tail):
    """Any frame at all: the switch survives, and the slots do not notice."""
    lab = Lab(switch, [Job.make(1, 2, switch.front_ports)])
    job = lab.job
    codes = np.random.default_rng(1).integers(0, 16, (2, CODES_PER_PACKET), dtype=np.uint8)
    lab.send(job.codes(job.workers[0], codes[0]))
    for header in (
        bytes(Ether(dst=SERVICE_MAC)),
        bytes(Ether(dst=SERVICE_MAC) / IP(dst=SERVICE_IP))[:20],
        bytes(job.codes(job.workers[1], codes[1]))[:42],
    ):
        switch.exchange(job.workers[1].switch_port, header + tail)
    assert lab.send(job.codes(job.workers[1], codes[1])).payloads == (job.sum(codes),) * 2
