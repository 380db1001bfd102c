"""Lost, copied and late packets, one at a time."""

import numpy as np
import pytest
from switch_lab.jobs import CODES_PER_PACKET
from switch_lab.lab import Lab
from thc_scapy import REASONS, ThcError


@pytest.fixture
def codes() -> np.ndarray:
    """Return codes by round and worker."""
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


@pytest.mark.parametrize("late", [2, 3, 4])
def test_stale_rounds(lab, codes, late):
    """A packet of a round that is over, up to two phases late, is not added to the current sums of its version."""
    for round_ in range(1, late + 2):
        lab.push(lab.job, codes[round_], round=round_)
    current = late + 3 if late % 2 == 0 else late + 2  # a round that uses its version
    send(lab, codes, 0, current)
    stale = send(lab, codes, 1, 1, retransmit=True)
    assert stale.kinds == ["straggler"]
    assert stale.to == [lab.job.workers[1].endpoint]
    for worker in (1, 2):
        send(lab, codes, worker, current)
    assert send(lab, codes, 3, current).payloads == (lab.job.sum(codes[current]),) * 4


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
