"""Whole partitions over bad networks: every packet against the reference, every result against the definition."""

import pytest
from switch_lab.jobs import CODES_PER_PACKET, Job
from switch_lab.lab import Lab
from switch_lab.simulation import Faults, Simulation
from switch_lab.targets.target import Target


def two_jobs(target: Target) -> Lab:
    jobs = [Job.make(1, 4, target.front_ports, slots=5), Job.make(2, 3, target.front_ports, slots=4)]
    return Lab(target, jobs)


def test_partition_of_64_packets(target):
    """4 workers, 64 full packets each, 5% loss and 5% copies each way, in any order."""
    lab = Lab(target, [Job.make(1, 4, target.front_ports, slots=16)])
    Simulation(lab, seed=1, chunks=64, codes_per_packet=CODES_PER_PACKET).run()
    assert lab.reasons["completed"] == 64
    assert {"absorbed", "replayed", "incomplete", "duplicate"} <= lab.reasons.keys()


@pytest.mark.parametrize("seed", range(2))
def test_jobs_and_a_restart(target, seed):
    lab = two_jobs(target)
    Simulation(lab, seed=seed, chunks=16, faults=Faults(loss=0.1, delay=0.1), restart_after=60).run()
    assert {"absorbed", "completed", "replayed", "straggler"} <= lab.reasons.keys()


def test_quorum(target):
    lab = Lab(target, [Job.make(1, 5, target.front_ports, quorum=3, slots=4)])
    Simulation(lab, seed=1, chunks=20).run()
    assert {"completed", "replayed", "straggler"} <= lab.reasons.keys()


def test_nothing_but_copies(target):
    """Every packet arrives several times."""
    lab = Lab(target, [Job.make(1, 3, target.front_ports, slots=3)])
    Simulation(lab, seed=3, chunks=8, faults=Faults(loss=0, duplication=0.7, spurious_retransmission=0.3)).run()


def test_heavy_loss(target):
    lab = Lab(target, [Job.make(1, 3, target.front_ports, slots=3)])
    Simulation(lab, seed=4, chunks=8, faults=Faults(loss=0.4)).run()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_schedules(target, seed):
    lab = two_jobs(target)
    Simulation(lab, seed=seed, chunks=60, faults=Faults(loss=0.1, delay=0.1), restart_after=200).run()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 210))
def test_many_quorum_schedules(target, seed):
    lab = Lab(target, [Job.make(1, 6, target.front_ports, quorum=4, slots=5)])
    Simulation(lab, seed=seed, chunks=80, faults=Faults(loss=0.1, delay=0.1)).run()
