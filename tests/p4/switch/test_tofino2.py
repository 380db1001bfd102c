"""The TNA program compiled for Tofino 2: it differs by a preprocessor symbol, so a few long tests suffice."""

import numpy as np
import pytest
from switch_lab.jobs import CODES_PER_PACKET, NORMS_PER_PACKET, Job
from switch_lab.lab import Lab
from switch_lab.simulation import Simulation
from switch_lab.targets.model import ModelTarget, t2na


@pytest.fixture(scope="module", params=[1, 2], ids=lambda pipes: f"pipes-{pipes}")
def tofino2(request: pytest.FixtureRequest) -> ModelTarget:
    return t2na(request.param)


def test_partition_of_full_packets(tofino2):
    lab = Lab(tofino2, [Job.make(1, 4, tofino2.front_ports)])
    Simulation(lab, seed=1, chunks=20, codes_per_packet=CODES_PER_PACKET).run()
    assert lab.reasons["completed"] == 20


def test_quorum(tofino2):
    lab = Lab(tofino2, [Job.make(1, 5, tofino2.front_ports, quorum=3, slots=4)])
    Simulation(lab, seed=1, chunks=20).run()
    assert {"completed", "replayed", "straggler"} <= lab.reasons.keys()


def test_norms(tofino2):
    lab = Lab(tofino2, [Job.make(1, 3, tofino2.front_ports)])
    words = np.random.default_rng(1).integers(0, 2**32, (3, NORMS_PER_PACKET), dtype=np.uint32)
    for worker in lab.job.workers:
        outcome = lab.send(lab.job.norms(worker, words[worker.worker_id].view(np.float32)))
    assert outcome.payloads == (words.max(axis=0).astype(">u4").tobytes(),) * 3
