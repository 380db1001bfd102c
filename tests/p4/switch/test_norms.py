"""NORM packets: the maximum of fp32 words, taken as unsigned integers."""

import numpy as np
from switch_lab.jobs import CODES_PER_PACKET, NORMS_PER_PACKET, Job
from switch_lab.lab import Lab

SPECIAL = np.array([0, 0x00000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000], np.uint32)


def push_norms(lab: Lab, words: np.ndarray, **fields: int) -> bytes:
    """Let every worker send its row of 32-bit words; return the result."""
    job = lab.job
    for worker in job.workers:
        outcome = lab.send(job.norms(worker, words[worker.worker_id].view(np.float32), **fields))
    assert outcome.kinds == ["max_norm"] * len(job.workers)
    (result,) = set(outcome.payloads)
    return result


def maximum(words: np.ndarray) -> bytes:
    return words.max(axis=0).astype(">u4").tobytes()


def test_maximum_of_random_norms(lab):
    norms = np.random.default_rng(0).lognormal(0, 20, (4, NORMS_PER_PACKET)).astype(np.float32)
    assert push_norms(lab, norms.view(np.uint32)) == norms.max(axis=0).astype(">f4").tobytes()


def test_zero_denormals_infinity_and_nan(lab):
    """Every special value against every other: larger bits win, so infinity beats numbers and NaN beats all."""
    words = np.random.default_rng(0).choice(SPECIAL, (4, NORMS_PER_PACKET))
    assert push_norms(lab, words) == maximum(words)


def test_words_are_unsigned(switch):
    """Bit 31, which no norm has, is not a sign for a switch either; thc-ps drops such norms (shard_slots_test)."""
    lab = Lab(switch, [Job.make(1, 4, switch.front_ports)])
    words = np.random.default_rng(1).integers(0, 2**32, (4, NORMS_PER_PACKET), dtype=np.uint32)
    words[:, :2] = [[0x7FFFFFFF, 0x80000000], [0x80000000, 0x7FFFFFFF], [0, 0xFFFFFFFF], [1, 0]]
    assert push_norms(lab, words) == maximum(words)


def test_every_round_begins_by_writing(lab):
    large = np.full((4, NORMS_PER_PACKET), 0x7F800000, np.uint32)
    small = np.full((4, NORMS_PER_PACKET), 0x3F800000, np.uint32)
    assert push_norms(lab, large, round=1) == maximum(large)
    assert push_norms(lab, small, round=3) == maximum(small)


def test_replay_and_incomplete(lab):
    job = lab.job
    words = np.random.default_rng(2).integers(0, 2**31, (4, NORMS_PER_PACKET), dtype=np.uint32)
    for worker in job.workers[:2]:
        lab.send(job.norms(worker, words[worker.worker_id].view(np.float32)))
    assert lab.send(job.norms(job.workers[1], words[1].view(np.float32), retransmit=True)).kinds == ["error"]
    for worker in job.workers[2:]:
        lab.send(job.norms(worker, words[worker.worker_id].view(np.float32)))
    outcome = lab.send(job.norms(job.workers[0], words[3].view(np.float32), retransmit=True))
    assert outcome.payloads == (maximum(words),)
    assert outcome.to == [job.workers[0].endpoint]


def test_norm_and_code_slots_do_not_mix(lab):
    """The same round in a norm slot and in a code slot."""
    job = lab.job
    codes = np.random.default_rng(3).integers(0, 16, (4, CODES_PER_PACKET), dtype=np.uint8)
    words = np.random.default_rng(3).integers(0, 2**31, (4, NORMS_PER_PACKET), dtype=np.uint32)
    for worker in job.workers[:3]:
        lab.send(job.codes(worker, codes[worker.worker_id]))
        lab.send(job.norms(worker, words[worker.worker_id].view(np.float32)))
    assert lab.send(job.codes(job.workers[3], codes[3])).payloads == (job.sum(codes),) * 4
    assert lab.send(job.norms(job.workers[3], words[3].view(np.float32))).payloads == (maximum(words),) * 4


def test_norms_of_a_quorum(target):
    lab = Lab(target, [Job.make(1, 3, target.front_ports, quorum=2)])
    job = lab.job
    words = np.array([[1], [3], [9]], np.uint32).repeat(NORMS_PER_PACKET, axis=1)
    lab.send(job.norms(job.workers[0], words[0].view(np.float32)))
    outcome = lab.send(job.norms(job.workers[1], words[1].view(np.float32)))
    assert set(outcome.payloads) == {maximum(words[:2])}
    late = lab.send(job.norms(job.workers[2], words[2].view(np.float32)))
    assert late.payloads == (maximum(words[:2]),)
