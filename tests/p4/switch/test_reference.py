"""The reference that switches are held against, held against thc-ps itself: byte for byte, packet by packet."""

from collections.abc import Iterator

import numpy as np
import pytest
from _core_test import SlotOutcome, SlotPool
from switch_lab.jobs import Job
from switch_lab.lab import Lab
from switch_lab.simulation import Faults, Simulation
from switch_lab.targets.thc_ps import ThcPsTarget

from byteps_thc.errors import ConfigurationError, InputError


@pytest.fixture
def thc_ps_target() -> Iterator[ThcPsTarget]:
    target = ThcPsTarget()
    yield target
    target.close()


def lab_of(target: ThcPsTarget, *jobs: Job) -> Lab:
    return Lab(target, jobs)


@pytest.mark.parametrize("seed", range(4))
def test_random_schedules(thc_ps_target, seed):
    """Loss, copies, reordering, stale rounds, several jobs, and a restart of one."""
    jobs = [Job.make(1, 4, thc_ps_target.front_ports, slots=4), Job.make(2, 3, thc_ps_target.front_ports, slots=4)]
    lab = lab_of(thc_ps_target, *jobs)
    Simulation(lab, seed=seed, chunks=30, faults=Faults(loss=0.1, delay=0.1), restart_after=150).run()
    assert {"absorbed", "completed", "replayed", "incomplete", "straggler", "stale_epoch"} <= lab.reasons.keys()


@pytest.mark.parametrize("seed", range(2))
def test_random_schedules_with_a_quorum(thc_ps_target, seed):
    lab = lab_of(thc_ps_target, Job.make(3, 5, thc_ps_target.front_ports, quorum=3, slots=6))
    Simulation(lab, seed=seed, chunks=40).run()
    assert {"completed", "replayed", "straggler"} <= lab.reasons.keys()


def test_round_wraps_around(thc_ps_target):
    lab = lab_of(thc_ps_target, Job.make(1, 2, thc_ps_target.front_ports, slots=4))
    Simulation(lab, seed=1, chunks=20, first_round=2**32 - 3).run()


SPOILED = [
    ({"job_id": 99}, "unknown_job"),
    ({"epoch": 12345}, "unknown_job"),
    ({"partition": 9}, "order_mismatch"),
    ({"chunk": 9}, "order_mismatch"),
    ({"flags": 2}, "malformed"),
    ({"contributions": 1}, "malformed"),
    ({"switch_pass": 1}, "spoofed"),
    ({"switch_step": 1}, "spoofed"),
    ({"switch_state": 1}, "spoofed"),
    ({"version": 1}, "malformed"),
    ({"code_bits": 8}, "malformed"),
    ({"value_bits": 16}, "malformed"),
    ({"num_workers": 3}, "malformed"),
    ({"worker_id": 2}, "malformed"),
    ({"worker_id": 0}, "unknown_worker"),
    ({"slot": 16}, "malformed"),
    ({"slot": 2**32 - 1}, "malformed"),
    ({"slot": 0}, "malformed"),
    ({"payload_count": 127}, "order_mismatch"),
    ({"payload_count": 126}, "malformed"),
    ({"payload_count": 0}, "malformed"),
    ({"message_type": 3}, "malformed"),
    ({"message_type": 6}, "malformed"),
    ({"message_type": 77}, "malformed"),
]


@pytest.mark.parametrize(("fields", "reason"), SPOILED, ids=lambda value: str(value))
def test_spoiled_fields(thc_ps_target, fields, reason):
    lab = lab_of(thc_ps_target, Job.make(1, 2, thc_ps_target.front_ports))
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128) % 16
    job = lab.job
    first, second = job.workers
    assert lab.send(job.codes(first, codes[0])).reason == "absorbed"
    assert lab.send(job.codes(second, codes[1], **fields)).reason == reason
    outcome = lab.send(job.codes(second, codes[1]))
    assert [reply.payload for reply in outcome.replies] == [job.sum(codes)] * 2


def test_binding_refuses_a_payload_of_another_length():
    table = np.arange(16, dtype=np.uint16)
    settings = {"bits": 4, "slots": 2, "norm_slots": 1, "codes_per_packet": 1024, "workers": 1, "value_bits": 8}
    pool = SlotPool(table, quorum=1, **settings)
    packet = {"round": 1, "worker": 0, "retransmit": False, "partition": 0, "chunk": 0, "count": 128}
    with pytest.raises(InputError, match="expected 64 bytes, got 63"):
        pool.contribute(slot=1, payload=bytes(63), **packet)
    reply = pool.contribute(slot=1, payload=bytes([0x12] * 64), **packet)
    assert (reply.outcome, reply.contributions, reply.bitmap) == (SlotOutcome.COMPLETED, 1, 1)
    assert reply.result == bytes([1, 2] * 64)
    assert pool.contribute(slot=2, payload=bytes(64), **packet).outcome == SlotOutcome.INVALID
    with pytest.raises(ConfigurationError, match="quorum"):
        SlotPool(table, quorum=2, **settings)
