"""NORM packets: the maximum of fp32 words, taken as unsigned integers."""

import numpy as np
from switch_lab.jobs import NORMS_PER_PACKET, Job
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
