"""Sums without faults (the first of microsoft/SwitchML's test names in the function names)."""

import numpy as np
import pytest
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether
from switch_lab.jobs import CODES_PER_PACKET, Job
from switch_lab.lab import Lab
from switch_lab.targets.switch import SwitchTarget
from thc_scapy import Thc


def random_codes(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 16, shape, dtype=np.uint8)


@pytest.mark.parametrize("marked", [0, 1])
def test_a_mark_on_the_last_contribution_reaches_all_workers(switch: SwitchTarget, marked: int) -> None:
    lab = Lab(switch, [Job.make(1, 2, switch.front_ports)])
    codes = random_codes(1, 2, CODES_PER_PACKET)
    ecn_capable, congestion = 2, 3
    for worker in lab.job.workers:
        packet = lab.job.codes(worker, codes[worker.worker_id])
        packet[IP].tos = congestion if worker.worker_id == marked else ecn_capable
        sent = switch.exchange(worker.switch_port, bytes(packet))
    results = [Ether(frame) for _, frame in sent]
    assert [bytes(result[Thc].payload)[:CODES_PER_PACKET] for result in results] == [lab.job.sum(codes)] * 2
    assert [result[IP].tos for result in results] == [congestion if marked == 1 else ecn_capable] * 2


def test_both_sets_reduction(lab):
    """Two rounds of a slot at a time: neither version touches the other."""
    job, codes = lab.job, random_codes(3, 2, 4, CODES_PER_PACKET)
    for worker in job.workers[:3]:
        for round_ in (1, 2):
            packet = job.codes(worker, codes[round_ - 1][worker.worker_id], round=round_)
            # Round 1 is over once round 2 began, but it may still be completed.
            assert lab.send(packet).reason == "absorbed"
    for round_ in (1, 2):
        outcome = lab.send(job.codes(job.workers[3], codes[round_ - 1][3], round=round_))
        assert outcome.payloads == (job.sum(codes[round_ - 1]),) * 4


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_numbers_of_workers(target, workers):
    lab = Lab(target, [Job.make(1, workers, target.front_ports)])
    codes = random_codes(workers, workers, CODES_PER_PACKET)
    assert lab.push(lab.job, codes) == (lab.job.sum(codes),) * workers


def test_different_ports(target):
    """All workers on one port, and one worker per port, get the same."""
    codes = random_codes(5, 4, CODES_PER_PACKET)
    for ports in (target.front_ports[:1], target.front_ports, target.front_ports[::-1]):
        lab = Lab(target, [Job.make(1, 4, ports)])
        assert lab.push(lab.job, codes) == (lab.job.sum(codes),) * 4
