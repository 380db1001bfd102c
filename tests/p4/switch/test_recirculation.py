"""Packets that meet on their way through the passes, and packets that are lost there: never a wrong sum."""

import itertools

import numpy as np
import pytest
from switch_lab.jobs import CODES_PER_PACKET, Job
from switch_lab.lab import Lab
from switch_lab.targets.model import ModelTarget
from thc_scapy import TYPES, Thc

ROUNDS = np.random.default_rng(0).integers(0, 16, (4, 4, CODES_PER_PACKET), dtype=np.uint8)


@pytest.fixture
def stepped(switch) -> ModelTarget:
    """A switch that can be run one pass at a time."""
    if not isinstance(switch, ModelTarget):
        pytest.skip("only the P4 model can be stopped between two passes")
    return switch


class Bench:
    """One job on a switch; packets are injected and stepped, and results are collected."""

    def __init__(self, target: ModelTarget, workers: int, quorum: int | None = None) -> None:
        home_pipe = target.front_ports[:1]  # packets from other pipes take one more step
        self.lab = Lab(target, [Job.make(1, workers, home_pipe, quorum=quorum)])
        self.job = self.lab.job
        self.model = target.model
        self.sent: list[Thc] = []

    def inject(self, worker: int, round_: int = 1, *, retransmit: bool = False) -> None:
        sender = self.job.workers[worker]
        packet = self.job.codes(sender, ROUNDS[round_][worker], round=round_, retransmit=retransmit)
        self.model.inject(sender.switch_port, bytes(packet))

    def step(self, passes: int = 1) -> None:
        for _ in range(passes):
            self._collect(self.model.step())

    def drain(self) -> None:
        self._collect(self.model.drain())

    def finish(self) -> list[str]:
        self.drain()
        return self.take()

    def _collect(self, outputs: list[tuple[int, bytes]]) -> None:
        self.sent += [Thc(self.lab.decode(output)[1]) for output in outputs]

    def take(self) -> list[str]:
        """The kinds of messages since the last call; aggregates are checked to be sums of the quorum."""
        kinds = []
        for thc in self.sent:
            kinds.append(next(name for name, value in TYPES.items() if value == thc.message_type))
            if kinds[-1] == "aggregate":
                assert bytes(thc.payload) in self._possible_sums(thc.round), "a wrong sum"
        self.sent.clear()
        return kinds

    def _possible_sums(self, round_: int) -> set[bytes]:
        members = itertools.combinations(range(len(self.job.workers)), self.job.quorum)
        return {self.job.sum(ROUNDS[round_][list(group)]) for group in members}


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)], ids=str)
def test_all_workers_at_once(stepped, order):
    bench = Bench(stepped, 4)
    for worker in order:
        bench.inject(worker)
    assert bench.finish() == ["aggregate"] * 4


@pytest.mark.parametrize("gap", range(1, 8))
def test_two_packets_interleave_at_every_distance(stepped, gap):
    """The second packet of a slot enters while the first is `gap` passes on."""
    bench = Bench(stepped, 2)
    bench.inject(0)
    bench.step(gap)
    bench.inject(1)
    assert bench.finish() == ["aggregate"] * 2


def test_packets_of_two_rounds_and_two_slots_interleave(stepped):
    bench = Bench(stepped, 3)
    for worker, round_ in itertools.product(range(3), (1, 2)):
        bench.inject(worker, round_)
    assert bench.finish() == ["aggregate"] * 6


@pytest.mark.parametrize("gap", range(1, 12))
def test_a_copy_while_the_first_is_under_way(stepped, gap):
    """It is never added, whether it comes before or after the slot is complete."""
    bench = Bench(stepped, 2)
    bench.inject(0)
    bench.drain()
    bench.inject(1)
    bench.step(gap)
    bench.inject(1, retransmit=True)
    bench.inject(0)
    kinds = bench.finish()
    assert kinds.count("aggregate") in (2, 3, 4)  # replays once it is complete
    bench.inject(0, retransmit=True)
    assert bench.finish() == ["aggregate"]


@pytest.mark.parametrize("lost_in", range(1, 4))
def test_a_packet_lost_on_its_way_up(stepped, lost_in):
    """Its worker counts as seen, but the slot never completes: never a sum with half of a packet."""
    bench = Bench(stepped, 3)
    bench.inject(0)
    bench.step(lost_in)
    assert bench.model.lose()
    for worker in (1, 2):
        bench.inject(worker)
    bench.drain()
    for worker in range(3):
        bench.inject(worker, retransmit=True)
    assert bench.finish() == ["error"] * 3
    for worker in range(3):
        bench.inject(worker, 3)  # the same version, later
    assert bench.finish() == ["aggregate"] * 3


def test_a_result_lost_on_its_way_down(stepped):
    """Whichever pass loses it once the slot is complete, every worker can ask for it."""
    bench = Bench(stepped, 2)
    bench.inject(0)
    bench.drain()
    bench.inject(1)
    passes = 0
    while bench.model.in_flight:
        bench.step()
        passes += 1
    assert passes == 1 + 8 + 8 + 1  # check, up, down, finish
    bench.take()
    for lost_in in range(1 + 8, passes):
        bench = Bench(stepped, 2)
        bench.inject(0)
        bench.drain()
        bench.inject(1)
        bench.step(lost_in)
        assert bench.model.lose()
        assert bench.take() == []
        for worker in range(2):
            bench.inject(worker, retransmit=True)
        assert bench.finish() == ["aggregate"] * 2


@pytest.mark.parametrize("gap", range(1, 10))
def test_a_replay_while_the_slot_is_reused(stepped, gap):
    """Round 3 writes into the version that a replay of round 1 is reading: half of each is never sent."""
    bench = Bench(stepped, 3, quorum=2)
    for worker in (0, 1):
        bench.inject(worker)
    assert bench.finish() == ["aggregate"] * 3
    bench.inject(2)
    bench.step(gap)
    for worker in (0, 1):
        bench.inject(worker, 3)
    kinds = bench.finish()
    assert kinds.count("aggregate") in (3, 4)
    bench.inject(2)
    bench.inject(2, 3)
    assert sorted(bench.finish()) == ["aggregate", "straggler"]


@pytest.mark.parametrize("gap", range(1, 10))
def test_a_quorum_round_that_is_overwritten_while_it_is_collected(stepped, gap):
    """Workers 0 and 1 complete round 1 while worker 2, which gave it up, is in round 3."""
    bench = Bench(stepped, 3, quorum=2)
    bench.inject(0)
    bench.drain()
    bench.inject(1)
    bench.step(gap)
    bench.inject(2, 3)
    assert bench.finish() in ([], ["aggregate"] * 3)
    bench.inject(1, 3)
    assert bench.finish() == ["aggregate"] * 3


def test_a_worker_after_the_quorum_closed_but_before_it_is_complete(stepped):
    """Two of three are under way: the third is not added, and learns this when it asks."""
    bench = Bench(stepped, 3, quorum=2)
    bench.inject(0)
    bench.inject(1)
    bench.step(2)
    bench.inject(2)
    bench.inject(2, retransmit=True)
    assert bench.finish() == ["error", *["aggregate"] * 3]
    bench.inject(2, retransmit=True)
    assert bench.finish() == ["aggregate"]


def test_a_recirculation_queue_that_overflows(stepped):
    """The queue holds two of eight packets: all sums are right, and retransmissions finish as many as possible."""
    bench = Bench(stepped, 4)
    for worker, round_ in itertools.product(range(4), (1, 2)):
        bench.inject(worker, round_)
        if bench.model.in_flight > 2:
            bench.step()
            bench.model.lose()
    kinds = bench.finish()
    for worker in range(4):
        bench.inject(worker, 3)
    bench.drain()
    assert kinds.count("aggregate") in (0, 4, 8)
    assert bench.take() == ["aggregate"] * 4


@pytest.mark.parametrize("gap", range(1, 9))
def test_a_job_starts_over_while_a_packet_is_on_its_way(stepped, gap):
    """A packet of the old epoch is neither in the sums of the new one nor in its count."""
    bench = Bench(stepped, 2)
    bench.inject(1)
    bench.step(gap)
    epoch = bench.job.epoch + 1
    stepped.reopen(bench.job, epoch)
    bench.job = bench.job.with_epoch(epoch)
    bench.inject(0, round_=1)
    assert bench.finish() == []
    bench.inject(1, round_=1)
    assert bench.finish() == ["aggregate"] * 2


def test_ports_of_another_pipe_that_the_description_does_not_name(stepped):
    """A worker behind such a port meets the slots of the home pipe, not the slots of the pipe it came through."""
    if stepped.pipes == 1:
        pytest.skip("one pipe")
    bench = Bench(stepped, 2)
    second = bench.job.workers[1]
    unnamed = next(port for port in range(128, 256) if port not in stepped.front_ports and port % 128 < 64)
    bench.inject(0)
    bench.model.inject(unnamed, bytes(bench.job.codes(second, ROUNDS[1][1])))
    assert bench.finish() == ["aggregate"] * 2
