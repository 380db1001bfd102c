"""Lost, copied and late packets, one at a time."""

import numpy as np
import pytest
from switch_lab.jobs import CODES_PER_PACKET
from switch_lab.lab import Lab
from thc_scapy import REASONS, ThcError


@pytest.fixture
def codes() -> np.ndarray:
    """Of eight rounds: four workers' codes each."""
    return np.random.default_rng(0).integers(0, 16, (8, 4, CODES_PER_PACKET), dtype=np.uint8)


def send(lab: Lab, codes: np.ndarray, worker: int, round_: int, **fields: int):
    return lab.send(lab.job.codes(lab.job.workers[worker], codes[round_][worker], round=round_, **fields))


@pytest.mark.parametrize("worker", range(4))
@pytest.mark.parametrize("retransmit", [False, True])
def test_retransmit_after_reduction(lab, codes, worker, retransmit):
    """The result was lost on the way to one worker: it is replayed to that worker alone, as it was."""
    (result, *_) = lab.push(lab.job, codes[1])
    for _ in range(2):
        outcome = send(lab, codes, worker, 1, retransmit=retransmit)
        assert outcome.kinds == ["aggregate"]
        assert outcome.to == [lab.job.workers[worker].endpoint]
        assert outcome.payloads == (result,)


def test_replay_does_not_look_at_the_codes(lab, codes):
    """A retransmission that was damaged on the way changes nothing."""
    lab.push(lab.job, codes[1])
    outcome = lab.send(lab.job.codes(lab.job.workers[2], 15 - codes[1][2], retransmit=True))
    assert outcome.payloads == (lab.job.sum(codes[1]),)
    assert send(lab, codes, 0, 1).payloads == (lab.job.sum(codes[1]),)


def test_ignore_retransmissions(lab, codes):
    """Copies of an incomplete slot's packets are never added; only those with the flag are answered."""
    seen = 0
    for worker in range(3):
        send(lab, codes, worker, 1)
        seen |= 1 << worker
        assert send(lab, codes, worker, 1).reason == "duplicate"
        outcome = send(lab, codes, worker, 1, retransmit=True)
        assert outcome.kinds == ["error"]
        error = outcome.replies[0].thc[ThcError]
        assert (error.reason, error.worker_bitmap) == (REASONS["incomplete"], seen)
    assert send(lab, codes, 3, 1).payloads == (lab.job.sum(codes[1]),) * 4


def test_a_first_packet_with_the_flag_is_added(lab, codes):
    """The packet before it was lost: the flag says nothing about what the aggregator has."""
    for worker in range(3):
        assert send(lab, codes, worker, 1, retransmit=True).reason == "absorbed"
    assert send(lab, codes, 3, 1, retransmit=True).payloads == (lab.job.sum(codes[1]),) * 4


def test_retransmit_from_previous_set(lab, codes):
    """A worker that lacks the result of round 1 gets it while the others are in round 2."""
    lab.push(lab.job, codes[1], round=1)
    for worker in range(3):
        assert send(lab, codes, worker, 2).reason == "absorbed"
    outcome = send(lab, codes, 3, 1, retransmit=True)
    assert outcome.payloads == (lab.job.sum(codes[1]),)
    assert send(lab, codes, 3, 2).payloads == (lab.job.sum(codes[2]),) * 4


@pytest.mark.parametrize("late", [2, 3, 4])
def test_stale_rounds(lab, codes, late):
    """A packet of a round that is over, up to two phases late, is not added to what its version holds now."""
    for round_ in range(1, late + 2):
        lab.push(lab.job, codes[round_], round=round_)
    if late % 2 == 0:  # its version is in use
        send(lab, codes, 0, late + 3)
    else:
        send(lab, codes, 0, late + 2)
    stale = send(lab, codes, 1, 1, retransmit=True)
    assert stale.kinds == ["straggler"]
    assert stale.to == [lab.job.workers[1].endpoint]
    current = late + 3 if late % 2 == 0 else late + 2
    for worker in (1, 2):
        send(lab, codes, worker, current)
    assert send(lab, codes, 3, current).payloads == (lab.job.sum(codes[current]),) * 4


def test_straggler_notice_has_no_payload(lab, codes):
    lab.push(lab.job, codes[3], round=3)
    (notice,) = send(lab, codes, 2, 1, slot=lab.job.first_code_slot).replies
    assert notice.payload == b""
    assert (notice.thc.payload_count, notice.thc.contributions, notice.thc.flags) == (0, 0, 0)
    assert (notice.thc.round, notice.thc.worker_id) == (1, 2)


def test_a_skipped_round_is_not_complete(lab, codes):
    """Nobody finished round 1; round 2 begins. Round 1 may still be finished, and neither mixes with the other."""
    send(lab, codes, 0, 1)
    lab.push(lab.job, codes[2], round=2)
    for worker in (1, 2):
        assert send(lab, codes, worker, 1).reason == "absorbed"
    assert send(lab, codes, 3, 1).payloads == (lab.job.sum(codes[1]),) * 4
    lab.push(lab.job, codes[3], round=3)
    assert send(lab, codes, 0, 1).kinds == ["straggler"]


def test_an_unfinished_round_is_overwritten(lab, codes):
    """Round 3 takes the version of round 1, which three of four workers had given up."""
    for worker in range(3):
        send(lab, codes, worker, 1)
    lab.push(lab.job, codes[3], round=3)
    assert send(lab, codes, 3, 1).kinds == ["straggler"]


@pytest.mark.parametrize("fields", [{"partition": 8}, {"chunk": 1}, {"partition": 1, "chunk": 7}], ids=str)
def test_order_mismatch(lab, codes, fields):
    """Workers that put different partitions or chunks into a slot and round are told; nothing is added."""
    send(lab, codes, 0, 1)
    outcome = send(lab, codes, 1, 1, **fields)
    assert outcome.kinds == ["error"]
    error = outcome.replies[0].thc[ThcError]
    assert (error.reason, error.worker_bitmap) == (REASONS["order_mismatch"], 0)
    for worker in (1, 2):
        assert send(lab, codes, worker, 1).reason == "absorbed"
    assert send(lab, codes, 3, 1).payloads == (lab.job.sum(codes[1]),) * 4
    assert send(lab, codes, 1, 1, **fields).kinds == ["error"]


def test_packets_of_different_length_in_one_round(lab, codes):
    """A switch takes full packets only: shorter ones would overtake others in the recirculation."""
    refusal = "order_mismatch" if lab.target.limits.codes_multiple == 1 else "malformed"
    send(lab, codes, 0, 1)
    short = lab.job.codes(lab.job.workers[1], codes[1][1][: CODES_PER_PACKET // 2])
    assert lab.send(short).reason == refusal
    assert send(lab, codes, 1, 1).reason == "absorbed"
