"""Stages that workers keep over moves at any moment: simulated, with servers that answer in any order."""

import random
from typing import Any

import numpy as np
import pytest

from byteps_thc._base.errors import TransportError
from byteps_thc._net.failover.plan import Plan, Statement, named_in, why_none
from byteps_thc._net.failover.stages import CodeStage, KeptStages, NormStage

PIECES = 3


class Operation:
    """A stage of one worker in a session."""

    def __init__(self, key: tuple[str, int], sent: Any, into: Any) -> None:
        self.key, self.sent, self.into, self.done = key, sent, into, False


class FakeSession:
    """Pushes in order; the sums come when the simulation says so, to each worker at another time."""

    def __init__(self) -> None:
        self.streams: dict[str, list[Operation]] = {"norms": [], "codes": []}

    def push_norms(self, partition: int, norms: Any, max_norms: Any, *, compared: int = 0) -> Any:
        del compared
        return self._push("norms", partition, norms, max_norms)

    def push_codes(self, partition: int, codes: Any, aggregate: Any, contributions: Any) -> Any:
        del contributions
        return self._push("codes", partition, codes, aggregate)

    def wait(self, stage: Any, timeout: float | None = None) -> None:
        del stage, timeout

    def _push(self, stream: str, partition: int, sent: Any, into: Any) -> Operation:
        self.streams[stream].append(Operation((stream, partition), sent, into))
        return self.streams[stream][-1]


class Worker:
    """Averages PIECES pieces a round as an engine does: measure, encode, decode, each in order."""

    def __init__(self, number: int) -> None:
        self.number, self.session, self.kept = number, FakeSession(), KeptStages()
        self.codes = [np.zeros(1, np.int64) for _ in range(PIECES)]
        self.sums = [np.zeros(1, np.int64) for _ in range(PIECES)]
        self.maxima = [np.zeros(1, np.int64) for _ in range(PIECES)]
        self.norm_stages: list[NormStage] = []
        self.code_stages: list[CodeStage] = []
        self.decoded = 0

    def may(self) -> list[Any]:
        steps = []
        number = len(self.norm_stages)
        if number - self.decoded < PIECES:  # the piece's round before is over
            steps.append(self.measure)
        if len(self.code_stages) < number and self.norm_stages[len(self.code_stages)].done:
            steps.append(self.encode)
        if self.decoded < len(self.code_stages) and self.code_stages[self.decoded].done:
            steps.append(self.decode)
        return steps

    def measure(self) -> None:
        number = len(self.norm_stages)
        norms = np.array([value(self.number, number)])
        stage = self.kept.new_norms(number, norms, self.maxima[number % PIECES], 0)  # type: ignore[arg-type]
        norms[0] = -1  # the caller's again
        self.norm_stages.append(stage)
        stage.push(self.session)

    def encode(self) -> None:
        number = len(self.code_stages)
        piece = number % PIECES
        assert self.maxima[piece][0] == max(value(each, number) for each in range(WORKERS))
        self.codes[piece][0] = value(self.number, number)
        stage = self.kept.new_codes(number, self.codes[piece], self.sums[piece], self.sums[piece])  # type: ignore[arg-type]
        self.code_stages.append(stage)
        stage.push(self.session)

    def decode(self) -> None:
        number = self.decoded
        assert self.sums[number % PIECES][0] == sum(value(each, number) for each in range(WORKERS))
        self.decoded += 1


WORKERS = 3


def value(worker: int, number: int) -> int:
    return (worker + 1) * 7919 * (number + 1) % 10007


def arrived(workers: list[Worker], at: Worker) -> list[Any]:
    """Return results that a worker may get now: all workers have pushed the stage; servers answer in any order."""
    results = []
    for stream in ("norms", "codes"):
        streams = [worker.session.streams[stream] for worker in workers]
        length = min(map(len, streams))
        assert all([each.key for each in s[:length]] == [each.key for each in streams[0][:length]] for s in streams)
        mine = at.session.streams[stream]
        results += [(stream, place) for place in range(length) if not mine[place].done]
    return results


def deliver(workers: list[Worker], at: Worker, stream: str, place: int) -> None:
    operation = at.session.streams[stream][place]
    sent = [worker.session.streams[stream][place].sent for worker in workers]
    operation.into[:] = np.max(sent, axis=0) if stream == "norms" else np.sum(sent, axis=0)
    operation.done = True


def take_results(worker: Worker) -> None:
    """As the engine's threads wait: in order."""
    for stages in (worker.norm_stages, worker.code_stages):
        for stage in stages:
            if not stage.done and not stage.operation.done:  # type: ignore[union-attr]
                break
            if not stage.done:
                worker.kept.finish(stage)


def move(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kept.settle(worker.session)
    missing = tuple(sorted({stage for worker in workers for stage in worker.kept.missing()}))
    for worker in workers:
        worker.session = FakeSession()
        worker.kept.push_again(worker.session, missing)


@pytest.mark.parametrize("seed", range(20))
def test_no_round_is_lost_and_no_sum_is_wrong_wherever_workers_are(seed: int) -> None:
    chance = random.Random(seed)
    workers = [Worker(number) for number in range(WORKERS)]
    for _ in range(1500):
        worker = chance.choice(workers)
        results = arrived(workers, worker)
        if chance.random() < 0.02:
            move(workers)
        elif results and chance.random() < 0.6:
            deliver(workers, worker, *chance.choice(results))
        else:
            take_results(worker)
            if steps := worker.may():
                chance.choice(steps)()
    assert min(worker.decoded for worker in workers) > 40
    # Kept stages do not grow: two rounds at most.
    assert all(len(worker.kept._codes) <= 3 * PIECES for worker in workers)
    assert all(len(worker.kept._norms) <= 3 * PIECES for worker in workers)


def test_what_is_forgotten_is_an_error_and_no_other_stage() -> None:
    worker = Worker(0)
    worker.measure()
    worker.kept._norms.clear()
    with pytest.raises(TransportError, match="another rank lacks stage 0, which this rank no longer has"):
        worker.kept.push_again(FakeSession(), ((0, 0),))


def test_a_plan_is_of_servers_that_all_reach_and_of_what_any_lacks() -> None:
    first = Statement(((0, 3), (0, 4), (1, 2)), ("there", "there", "leaving", "there"), False)
    second = Statement(((0, 4), (1, 1)), ("there", "silent", "there", "there"), False)
    said = [Statement.from_text(each.as_text()) for each in (first, second)]
    assert said == [first, second]
    assert Plan.of(said) == Plan((0, 3), (), ((0, 3), (0, 4), (1, 1), (1, 2)), given_up=False)
    fruitless = Statement(((0, 4), (1, 1)), ("there",) * 4, tired=False, fruitless=True)
    assert Plan.of([first, Statement.from_text(fruitless.as_text())]).fruitless
    assert Plan.of(said, refusing=[0]).servers == (3,)
    assert Plan.of(said, refusing=[0, 3]).servers == (0, 3)  # no other server is present
    assert why_none(["a", "b", "c", "d"], said) == "b is silent for rank 1; c is leaving for rank 0"


@pytest.mark.parametrize(
    ("error", "number"),
    [
        ("server 10.0.0.1:48865, job 2: the server takes no more jobs", 0),
        ("server 10.0.0.10:48867, job 2: another training uses this job number here", 2),  # its third shard
        ("server 10.0.0.10:50000, job 2: no more jobs", 1),
        ("server 10.0.0.10:100, job 2: no more jobs", None),
        ("server 10.0.0.2:48865 did not answer", None),
        ("no server is there for all ranks", None),
    ],
)
def test_a_server_is_known_by_what_it_has_refused(error: str, number: int | None) -> None:
    assert named_in(error, ["10.0.0.1:48865", "10.0.0.10:50000", "10.0.0.10:48865"]) == number
