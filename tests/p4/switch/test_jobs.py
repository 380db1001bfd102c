"""Joining, several jobs, restarts of workers and of the switch, duplicate workers."""

import numpy as np
from scapy.layers.l2 import Ether
from scapy.packet import Packet
from switch_lab.jobs import CODES_PER_PACKET, Job, Worker
from switch_lab.lab import Lab
from switch_lab.targets.target import Target
from thc_scapy import REASONS, TYPES, Thc, ThcChallenge, ThcError, ThcHello, ThcWelcome


def codes_of(seed: int, workers: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 16, (workers, CODES_PER_PACKET), dtype=np.uint8)


def ask(target: Target, worker: Worker, hello: Packet) -> list[Ether]:
    """The answers to a HELLO, with the cookie that an aggregator may ask for first."""
    replies = [Ether(reply) for _, reply in target.exchange(worker.switch_port, bytes(hello))]
    if len(replies) != 1 or ThcChallenge not in replies[0]:
        return replies
    hello[ThcHello].cookie = replies[0][ThcChallenge].cookie
    return [Ether(reply) for _, reply in target.exchange(worker.switch_port, bytes(hello))]


def test_jobs_have_the_last_slots_of_their_ranges(target):
    jobs = [Job.make(1, 2, target.front_ports, slots=16), Job.make(2, 2, target.front_ports, slots=5)]
    lab = Lab(target, jobs)
    for job in lab.jobs:
        codes = codes_of(job.job_id, 2)
        assert lab.push(job, codes, slot=job.slots - 1) == (job.sum(codes),) * 2
        beyond = lab.send(job.codes(job.workers[0], codes[0], slot=job.slots))
        assert beyond.reason == "malformed"


def test_a_worker_of_one_job_is_none_of_the_other(target):
    jobs = [Job.make(1, 2, target.front_ports), Job.make(2, 2, target.front_ports)]
    lab = Lab(target, jobs)
    first, second = lab.jobs
    foreign = second.codes(first.workers[0], codes_of(1, 2)[0])
    assert lab.send(foreign).reason == "unknown_worker"


def test_welcome_says_what_workers_need(lab, target):
    job = lab.job
    (reply,) = ask(target, job.workers[0], job.hello(job.workers[0], nonce=1))
    assert reply[Thc].message_type == TYPES["welcome"]
    assert reply[Thc].epoch == job.epoch
    welcome = reply[ThcWelcome]
    assert (welcome.slots, welcome.norm_slots, welcome.shards) == (16, 2, 1)
    assert welcome.codes_multiple == target.limits.codes_multiple
    assert welcome.window_bytes >= 1024


def test_worker_restart_in_the_middle_of_a_round(lab):
    """The job begins anew: the slot has lost its sums, and senders of earlier packets are told so."""
    before, codes = lab.job, codes_of(3, 4)
    for worker in before.workers[:2]:
        lab.send(before.codes(worker, codes[worker.worker_id]))
    lab.push(before, codes, slot=5)
    job = lab.restart(before)
    outcome = lab.send(before.codes(before.workers[2], codes[2]))
    assert outcome.replies[0].thc[ThcError].reason == REASONS["stale_epoch"]
    again = codes_of(4, 4)
    assert lab.push(job, again) == (job.sum(again),) * 4
    assert lab.push(job, again, slot=5) == (job.sum(again),) * 4


def test_aggregator_restart_in_the_middle_of_a_round(target):
    """Packets of before get UNKNOWN_JOB, so that workers join again; the round is summed from the beginning."""
    job = Job.make(1, 4, target.front_ports)
    before = Lab(target, [job])
    codes = codes_of(6, 4)
    for worker in job.workers[:2]:
        before.send(before.job.codes(worker, codes[worker.worker_id]))
    after = Lab(target, [job])
    assert after.job.epoch != before.job.epoch
    late = after.send(before.job.codes(job.workers[2], codes[2]))
    assert late.replies[0].thc[ThcError].reason == REASONS["unknown_job"]
    assert after.push(after.job, codes) == (job.sum(codes),) * 4
