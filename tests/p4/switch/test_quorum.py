"""Slots that complete before every worker has contributed."""

import numpy as np
import pytest
from switch_lab.jobs import CODES_PER_PACKET, Job
from switch_lab.lab import Lab
from thc_scapy import FLAGS


@pytest.fixture
def quorum_lab(target) -> Lab:
    return Lab(target, [Job.make(1, 5, target.front_ports, quorum=3)])


def codes_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 16, (5, CODES_PER_PACKET), dtype=np.uint8)


def send(lab: Lab, codes: np.ndarray, worker: int, **fields: int):
    return lab.send(lab.job.codes(lab.job.workers[worker], codes[worker], **fields))


@pytest.mark.parametrize("first", [(0, 1, 2), (4, 2, 0), (3, 1, 4)], ids=str)
def test_the_quorum_completes_for_all(quorum_lab, first):
    codes = codes_of(1)
    for worker in first[:2]:
        assert send(quorum_lab, codes, worker).reason == "absorbed"
    outcome = send(quorum_lab, codes, first[2])
    assert outcome.payloads == (quorum_lab.job.sum(codes[list(first)]),) * 5
    answers = {(reply.thc.contributions, reply.thc.flags & ~FLAGS["last"]) for reply in outcome.replies}
    assert answers == {(3, FLAGS["partial"])}
    assert [reply.thc.worker_id for reply in outcome.replies] == list(range(5))


def test_a_late_worker_gets_the_result_and_adds_nothing(quorum_lab):
    codes = codes_of(2)
    for worker in (0, 1, 2):
        send(quorum_lab, codes, worker)
    for worker in (3, 4, 3, 0):
        outcome = send(quorum_lab, codes, worker)
        assert outcome.reason == "replayed"
        assert outcome.to == [quorum_lab.job.workers[worker].endpoint]
        assert outcome.payloads == (quorum_lab.job.sum(codes[:3]),)
        assert [(reply.thc.contributions, reply.thc.flags) for reply in outcome.replies] == [(3, FLAGS["partial"])]


def test_a_late_worker_of_a_round_that_is_gone(quorum_lab):
    for round_ in (1, 2, 3):
        codes = codes_of(round_)
        for worker in (0, 1, 2):
            send(quorum_lab, codes, worker, round=round_)
    assert send(quorum_lab, codes, 4, round=1).kinds == ["straggler"]
    assert send(quorum_lab, codes, 4, round=3).payloads == (quorum_lab.job.sum(codes[:3]),)
