"""Packets that an aggregator must not sum: each between two that it must, whose sum tells."""

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Padding, Raw
from switch_lab.jobs import CODES_PER_PACKET, Job
from switch_lab.lab import Lab
from thc_scapy import REASONS, Thc, ThcError


@pytest.fixture
def pair(target) -> Lab:
    """A job of two workers."""
    return Lab(target, [Job.make(1, 2, target.front_ports)])


CODES = np.random.default_rng(0).integers(0, 16, (2, CODES_PER_PACKET), dtype=np.uint8)


def check_between(lab: Lab, packet: Packet, reason: str, **options: object) -> list[str]:
    """Send it while a slot waits for worker 1; return the kinds of the replies."""
    job = lab.job
    assert lab.send(job.codes(job.workers[0], CODES[0])).reason == "absorbed"
    outcome = lab.send(packet, **options)
    assert outcome.reason == reason
    assert lab.send(job.codes(job.workers[1], CODES[1])).payloads == (job.sum(CODES),) * 2
    return outcome.kinds


MALFORMED = {
    "version": (0, 1),
    "flags": (2, 0x81),
    "contributions": (1,),
    "code_bits": (0, 3, 8),
    "value_bits": (0, 16),
    "num_workers": (0, 3),
    "worker_id": (2, 31, 255),
    "slot": (0, 16, 0x10002, 0x80000002, 2**32 - 1),
    "payload_count": (0, 128, 896, 1022, 0x8100),
    "message_type": (0, 3, 6, 255),
}
SPOILED = [({field: value}, "malformed") for field, values in MALFORMED.items() for value in values]
SPOILED += [({"worker_id": 0}, "unknown_worker")]
#: A worker cannot step into the middle of the switch's passes: neither with one field, nor with all of a step.
INTERNAL = [{field: value} for field in ("switch_pass", "switch_step", "switch_state") for value in (1, 5, 8, 255)]
INTERNAL += [
    {"switch_pass": switch_pass, "switch_step": step, "switch_state": 5, "contributions": 2}
    for step in (0, 1, 2, 8, 9, 10, 11, 12, 13, 255)
    for switch_pass in (1, 8)
]
SPOILED += [(fields, "spoofed") for fields in INTERNAL]
#: Strangers, the only ones who are told.
SPOILED += [(fields, "unknown_job") for fields in ({"job_id": 99}, {"job_id": 0x0101}, {"epoch": 1})]


@pytest.mark.parametrize(("fields", "reason"), SPOILED, ids=str)
def test_spoiled_header(pair, fields, reason):
    packet = pair.job.codes(pair.job.workers[1], CODES[1], **fields)
    assert check_between(pair, packet, reason) == ["error"] * (reason == "unknown_job")


@pytest.mark.parametrize("sender", ["ip", "port"])
def test_a_worker_at_another_address(pair, sender):
    packet = pair.job.codes(pair.job.workers[1], CODES[1])
    if sender == "ip":
        packet[IP].src = "10.0.1.77"
    else:
        packet[UDP].sport = 50000
    assert check_between(pair, packet, "unknown_worker", worker=pair.job.workers[1]) == []


def test_strangers_of_unknown_jobs_are_answered_at_their_address(pair):
    """UNKNOWN_JOB goes to any sender: a worker whose switch was restarted is in no table."""
    packet = pair.job.codes(pair.job.workers[1], CODES[1], job_id=77)
    outcome = pair.send(packet)
    assert outcome.to == [pair.job.workers[1].endpoint]
    assert outcome.replies[0].thc[ThcError].reason == REASONS["unknown_job"]


@pytest.mark.parametrize("more_bytes", [-128, -127, -64, -2, -1, 1, 64, 400, 512])
def test_payloads_of_other_lengths(pair, more_bytes):
    packet = pair.job.codes(pair.job.workers[1], CODES[1])
    length = len(packet[Raw].load) + more_bytes
    packet[Raw].load = packet[Raw].load[:length].ljust(length, b"\x11")
    check_between(pair, packet, "malformed")


def test_more_than_1024_codes(pair):
    codes = np.full(CODES_PER_PACKET + 128, 3, np.uint8)
    check_between(pair, pair.job.codes(pair.job.workers[1], codes), "malformed")


@pytest.mark.parametrize("header_bytes", [0, 1, 2, 16, 31])
def test_less_than_a_header(pair, header_bytes):
    packet = pair.job.codes(pair.job.workers[1], CODES[1])
    data = bytes(packet[Thc])[:header_bytes]
    packet[UDP].remove_payload()
    check_between(pair, packet / Raw(data), "malformed")


def test_ethernet_padding_is_no_payload(pair):
    """A trailer behind the IP packet does not belong to the packet, with any origin."""
    job = pair.job
    for worker in job.workers:
        padded = job.codes(worker, CODES[worker.worker_id]) / Padding(b"\xee" * 64)
        outcome = pair.send(padded)
    assert outcome.payloads == (job.sum(CODES),) * 2


@pytest.mark.parametrize(("count", "chunk"), [(64, 0), (128, 0), (896, 0), (1000, 0), (1024, 4096), (1024, 0xFFFF)])
def test_what_only_a_switch_refuses(switch, count, chunk):
    """Packets of less than 8 passes, and chunks of more than 12 bits: WELCOME and the plan keep workers from it."""
    lab = Lab(switch, [Job.make(1, 2, switch.front_ports)])
    codes = np.resize(CODES[1], count)
    check_between(lab, lab.job.codes(lab.job.workers[1], codes, chunk=chunk), "malformed")


@pytest.mark.parametrize("count", [1, 31, 32, 224, 264])
def test_norms_of_other_counts(switch, count):
    lab = Lab(switch, [Job.make(1, 2, switch.front_ports)])
    norms = np.ones(count, np.float32)
    check_between(lab, lab.job.norms(lab.job.workers[1], norms, slot=1), "malformed")


def test_udp_and_ip_lengths_that_disagree(switch):
    """A frame whose headers contradict each other never reaches a slot. A host's IP stack drops such frames itself."""
    lab = Lab(switch, [Job.make(1, 2, switch.front_ports)])
    job = lab.job
    worker = job.workers[1]
    assert lab.send(job.codes(job.workers[0], CODES[0])).reason == "absorbed"
    for spoil in ({"udp": 8}, {"udp": 40}, {"udp": 167}, {"udp": 169}, {"udp": 0xFFFF}, {"ip": 20}, {"ip": 1500}):
        packet = job.codes(worker, CODES[1])
        if "udp" in spoil:
            packet[UDP].len = spoil["udp"]
        else:
            packet[IP].len = spoil["ip"]
        assert switch.exchange(worker.switch_port, bytes(packet)) == []
    assert lab.send(job.codes(worker, CODES[1])).payloads == (job.sum(CODES),) * 2


@pytest.mark.parametrize("missing_bytes", [1, 64, 127])
def test_a_frame_that_was_cut_off(switch, missing_bytes):
    """It is never summed. Tofino learns a packet's length only behind the slot check: the worker counts as seen,
    and the round is not completed without its codes."""
    lab = Lab(switch, [Job.make(1, 2, switch.front_ports)])
    job = lab.job
    assert lab.send(job.codes(job.workers[0], CODES[0])).reason == "absorbed"
    worker = job.workers[1]
    cut_off = bytes(job.codes(worker, CODES[1]))[:-missing_bytes]
    assert switch.exchange(worker.switch_port, cut_off) == []
    packet = job.codes(worker, CODES[1], retransmit=True)
    if switch.knows_length:
        assert lab.send(packet).payloads == (job.sum(CODES),) * 2
    else:
        ((_, answer),) = switch.exchange(worker.switch_port, bytes(packet))
        assert Ether(answer)[ThcError].reason == REASONS["incomplete"]
    assert lab.push(job, CODES, round=3) == (job.sum(CODES),) * 2


@pytest.mark.parametrize("fields", [{"flags": "MF"}, {"frag": 1}, {"version": 0}, {"proto": 6}], ids=str)
def test_fragments_and_other_protocols_are_not_summed(switch, fields):
    """Nor answered: they may leave the switch like any other IP packet."""
    lab = Lab(switch, [Job.make(1, 2, switch.front_ports)])
    job = lab.job
    assert lab.send(job.codes(job.workers[0], CODES[0])).reason == "absorbed"
    packet = job.codes(job.workers[1], CODES[1])
    for name, value in fields.items():
        setattr(packet[IP], name, value)
    for _, frame in switch.exchange(job.workers[1].switch_port, bytes(packet)):
        assert frame[14 + 20 :] == bytes(packet)[14 + 20 :]
    assert lab.send(job.codes(job.workers[1], CODES[1])).payloads == (job.sum(CODES),) * 2
