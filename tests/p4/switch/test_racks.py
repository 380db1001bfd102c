"""A switch that is the leaf of a rack: its workers get the results of one level, byte for byte."""

import numpy as np
import pytest
from scapy.packet import Packet, Raw
from switch_lab.jobs import CODES_PER_PACKET, NORMS_PER_PACKET
from switch_lab.racks import OTHER_LEAF, ROOT_EPOCH, ROOT_IP, RackLab, hello_of
from switch_lab.reference import Reference
from switch_lab.targets.switch import SwitchTarget
from thc_scapy import FLAGS, PORT, REASONS, TYPES, Thc, ThcChallenge, ThcError

CODES = np.random.default_rng(0).integers(0, 16, (3, 4, CODES_PER_PACKET), dtype=np.uint8)
NORMS = np.random.default_rng(0).random((4, NORMS_PER_PACKET), np.float32)


@pytest.fixture
def lab(switch: SwitchTarget) -> RackLab:
    return RackLab(switch).join()


def one_level(lab: RackLab, codes: np.ndarray, **fields: int) -> list[tuple[tuple[str, int], bytes]]:
    """Return a single server's results for the rack's workers, in the epoch of the leaf."""
    reference = Reference([lab.job])
    for worker in lab.job.workers:
        datagram = bytes(lab.job.codes(worker, codes[worker.worker_id], **fields)[Thc])
        replies = reference.handle(datagram, worker.endpoint).replies
    return sorted(reply for reply in replies if reply[0] in [worker.endpoint for worker in lab.workers])


def headers_of(lab: RackLab, received: list[tuple[tuple[str, int], bytes]]) -> list[Thc]:
    """One for each worker of the rack, in order."""
    assert [to for to, _ in received] == [worker.endpoint for worker in lab.workers]
    return [Thc(datagram) for _, datagram in received]


def reasons_of(lab: RackLab, before: dict[str, int]) -> dict[str, int]:
    after = lab.target.status().reasons
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def test_the_leaf_says_hello_as_a_worker_of_racks(switch: SwitchTarget) -> None:
    lab = RackLab(switch)
    (asked,) = lab.hello(lab.workers[0])
    header, hello = Thc(asked[1]), hello_of(asked)
    assert (header.num_workers, header.worker_id, header.code_bits, header.value_bits) == (2, 0, 8, 8)
    assert (hello.granularity, hello.quorum, hello.slots, hello.cookie) == (60, 2, lab.job.slots, 0)
    assert hello.values == [min(code, 60) for code in range(256)]
    assert hello.nonce == header.round | header.partition << 32 | header.chunk << 48
    challenge = lab.answer(header, "challenge") / ThcChallenge(cookie=99)
    (again,) = lab.from_root(challenge)
    assert (hello_of(again).cookie, hello_of(again).nonce) == (99, hello.nonce)
    ((to, welcome),) = lab.from_root(lab.welcome(again))
    assert (to, Thc(welcome).message_type) == (lab.workers[0].endpoint, TYPES["welcome"])


def test_a_rack_goes_up_as_one_packet(lab: RackLab) -> None:
    ((to, datagram),) = lab.push(CODES[0], slot=7, round=5, partition=3, chunk=9)
    assert to == (ROOT_IP, PORT)
    total = lab.job.sum(CODES[0][:2])
    fields = {"slot": 7, "round": 5, "partition": 3, "chunk": 9, "payload_count": CODES_PER_PACKET, "code_bits": 8}
    assert datagram == bytes(lab.root_job.header(lab.root_job.workers[0], "codes", **fields) / Raw(total))


@pytest.mark.parametrize("last", ["this rack", "the other rack"])
def test_results_are_those_of_one_level(lab: RackLab, last: str) -> None:
    for round_ in (1, 2, 3):
        codes, fields = CODES[round_ - 1], {"round": round_, "partition": 4, "chunk": round_}
        if last == "this rack":
            assert lab.other_rack(codes, **fields) == []
            answers = lab.at_root(lab.push(codes, **fields))
        else:
            assert lab.at_root(lab.push(codes, **fields)) == []
            answers = lab.other_rack(codes, **fields)
        assert lab.down(answers) == one_level(lab, codes, **fields)


@pytest.mark.parametrize(
    "flags", [FLAGS["congested"] | FLAGS["last"], FLAGS["last"], FLAGS["congested"] | FLAGS["partial"]]
)
def test_only_marks_of_full_queues_come_with_results_of_the_root(lab: RackLab, flags: int) -> None:
    lab.other_rack(CODES[0])
    ((_, datagram),) = lab.at_root(lab.push(CODES[0]))
    result = Thc(datagram)
    result.flags = flags
    received = [Thc(datagram).flags for _, datagram in lab.from_root(result)]
    known = flags & ~(FLAGS["congested"] | FLAGS["last"]) == 0
    assert received == [flags & FLAGS["congested"]] * len(lab.workers) * known


def test_norms(lab: RackLab) -> None:
    assert lab.norms(lab.workers[0], NORMS[0]) == []
    assert lab.at_root(lab.norms(lab.workers[1], NORMS[1])) == []
    received = lab.down(lab.other_racks_norms(np.maximum(NORMS[2], NORMS[3])))
    for worker, header in zip(lab.workers, headers_of(lab, received), strict=True):
        assert (header.message_type, header.contributions, header.num_workers) == (TYPES["max_norm"], 4, 4)
        assert (header.epoch, header.code_bits, header.worker_id) == (lab.job.epoch, 4, worker.worker_id)
        assert bytes(header.payload) == NORMS.max(axis=0).astype(">f4").tobytes()


def test_a_lost_sum_is_repaired_by_a_workers_repetition(lab: RackLab) -> None:
    lab.push(CODES[0])  # never reaches the root
    repeated = lab.codes(lab.workers[0], CODES[0][0], retransmit=True)
    assert Thc(repeated[0][1]).flags == FLAGS["retransmit"]
    assert bytes(Thc(repeated[0][1]).payload) == lab.job.sum(CODES[0][:2])
    assert lab.at_root(repeated) == []
    assert lab.down(lab.other_rack(CODES[0])) == one_level(lab, CODES[0])


def test_a_lost_result_is_repaired_by_a_workers_repetition(lab: RackLab) -> None:
    lab.other_rack(CODES[0])
    lab.at_root(lab.push(CODES[0]))  # the root's answer never reaches the leaf
    answers = lab.at_root(lab.codes(lab.workers[1], CODES[0][1], retransmit=True))
    assert lab.down(answers) == one_level(lab, CODES[0])


def test_who_is_missing_in_the_rack(lab: RackLab) -> None:
    """Nobody of another rack is."""
    lab.codes(lab.workers[1], CODES[0][1])
    ((_, datagram),) = lab.codes(lab.workers[1], CODES[0][1], retransmit=True)
    error = Thc(datagram)[ThcError]
    assert (error.reason, error.worker_bitmap) == (REASONS["incomplete"], 0b1110)


def test_which_rack_is_missing(lab: RackLab) -> None:
    lab.at_root(lab.push(CODES[0]))
    answers = lab.at_root(lab.codes(lab.workers[0], CODES[0][0], retransmit=True))
    for worker, header in zip(lab.workers, headers_of(lab, lab.down(answers)), strict=True):
        assert (header.epoch, header.num_workers, header.code_bits) == (lab.job.epoch, 4, 4)
        assert (header.worker_id, header.contributions) == (worker.worker_id, 0)
        error = header[ThcError]
        assert (error.reason, error.worker_bitmap, error.job_value) == (REASONS["racks_incomplete"], 0b01, 2)
    assert lab.down(lab.other_rack(CODES[0])) == one_level(lab, CODES[0])


def test_a_straggler_of_the_root(lab: RackLab) -> None:
    leaf, fields = lab.root_job.workers[0], {"slot": lab.job.first_code_slot, "payload_count": CODES_PER_PACKET}
    for round_ in (2, 3):  # the root has later rounds of the slot, which this leaf never was told of
        lab.other_rack(CODES[0], round=round_)
        header = lab.root_job.header(leaf, "codes", code_bits=8, round=round_, **fields)
        lab.root.handle(bytes(header / Raw(bytes(CODES_PER_PACKET))), leaf.endpoint)
    for header in headers_of(lab, lab.down(lab.at_root(lab.push(CODES[0], round=1)))):
        assert (header.message_type, header.epoch, header.num_workers) == (TYPES["straggler"], lab.job.epoch, 4)
        assert (header.code_bits, header.contributions, header.payload_count) == (4, 0, 0)


def test_an_order_mismatch_of_the_root_reaches_all_workers(lab: RackLab) -> None:
    lab.other_rack(CODES[0], partition=1)
    received = lab.down(lab.at_root(lab.push(CODES[0], partition=2)))
    for worker, header in zip(lab.workers, headers_of(lab, received), strict=True):
        assert header[ThcError].reason == REASONS["order_mismatch"]
        assert (header.epoch, header.worker_id, header.num_workers) == (lab.job.epoch, worker.worker_id, 4)


def result(lab: RackLab, **fields: int) -> Packet:
    """A result as the root sends it."""
    values = {"code_bits": 8, "contributions": 2, "slot": 5, "round": 1, "payload_count": CODES_PER_PACKET}
    header = lab.root_job.header(lab.root_job.workers[0], "aggregate", **(values | fields))
    return header / Raw(bytes(CODES_PER_PACKET))


@pytest.mark.parametrize(
    ("fields", "outside", "reason"),
    [
        ({}, {"src_ip": OTHER_LEAF.ip}, "not_root"),
        ({}, {"src_port": PORT + 1}, "not_root"),
        ({"epoch": ROOT_EPOCH + 1}, {}, "not_root"),
        ({"worker_id": 1}, {}, "not_root"),
        ({"num_workers": 3}, {}, "not_root"),
        ({"job_id": 2}, {}, "not_root"),
        ({"code_bits": 4}, {}, "malformed"),
        ({"payload_count": 512}, {}, "malformed"),
        ({"flags": 2}, {}, "malformed"),
        ({"switch_step": 12}, {}, "spoofed"),
    ],
    ids=str,
)
def test_what_only_claims_to_be_from_the_root(
    lab: RackLab, fields: dict[str, int], outside: dict[str, object], reason: str
) -> None:
    before = lab.target.status().reasons
    assert lab.from_root(result(lab, **fields), **outside) == []
    assert reasons_of(lab, before) == {reason: 1}


def test_a_worker_is_not_the_root(lab: RackLab) -> None:
    """Neither with the root's words, epoch included, nor does the root's job take its codes."""
    worker = lab.workers[0]
    outside = {"src_ip": worker.ip, "src_port": worker.udp_port, "port": worker.switch_port}
    before = lab.target.status().reasons
    assert lab.from_root(result(lab), **outside) == []
    assert reasons_of(lab, before) == {"not_root": 1}
    rounds = lab.target.status().jobs[0].slots_used
    for sent in (
        lab.codes(worker, CODES[0][0], epoch=ROOT_EPOCH, num_workers=2),
        lab.from_root(lab.job.codes(worker, CODES[0][0])[Thc].copy()),
    ):
        assert all(Thc(datagram).message_type == TYPES["error"] for _, datagram in sent)
    assert lab.target.status().jobs[0].slots_used == rounds


def test_nothing_of_the_root_is_believed_before_the_job_is_open(switch: SwitchTarget) -> None:
    lab = RackLab(switch)
    before = switch.status().reasons
    assert lab.from_root(result(lab)) == []
    assert reasons_of(lab, before) == {"not_root": 1}


def test_a_result_is_counted_and_touches_no_register(lab: RackLab) -> None:
    lab.codes(lab.workers[0], CODES[0][0], slot=5)
    before = lab.target.status()
    assert len(lab.from_root(result(lab))) == 2
    assert reasons_of(lab, before.reasons) == {"from_root": 1}
    assert lab.target.status().jobs[0].packets == before.jobs[0].packets
    assert lab.codes(lab.workers[1], CODES[0][1], slot=5)[0][1][32:] == lab.job.sum(CODES[0][:2])
