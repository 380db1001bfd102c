"""Gradients averaged over racks: the same numbers, to the bit, as by one server for all workers."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pytest
from rack_servers import RackServers

from byteps_thc import Compressor, GradientAverager, Session, ThcConfig, ThcError
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Timeouts
from byteps_thc._scheme.errors import DeadlineError, RestartError

# 16 KiB partitions: many slots
SMALL: dict[str, Any] = {"partition_bytes": 1 << 14, "rotation_block": 1024, "codes_per_packet": 1024}
SIZES = {"embedding": 70_001, "bias": 1, "empty": 0, "head": 30_000}
STEPS = 6
DEADLINE_S = 4.0


def averages_of(
    addresses: list[str], config: ThcConfig, *, job: int = 1, **settings: Any
) -> list[list[dict[str, np.ndarray]]]:
    """What each worker, at its server, gets in every step."""
    workers = len(addresses)

    def train(worker: int) -> list[dict[str, np.ndarray]]:
        rng = np.random.default_rng(worker)
        with Session(
            [addresses[worker]], job=job, worker=worker, workers=workers, config=config, **settings
        ) as session:
            averager = GradientAverager(session, Compressor(config, workers=workers, worker=worker))
            steps = [{name: rng.standard_normal(n, np.float32) for name, n in SIZES.items()} for _ in range(STEPS)]
            for step in steps:
                averager.average(step)
            return steps

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(train, range(workers)))


def assert_same(averages: list[list[dict[str, np.ndarray]]], expected: list[list[dict[str, np.ndarray]]]) -> None:
    for own, other in zip(averages, expected, strict=True):
        for step, other_step in zip(own, other, strict=True):
            for name in SIZES:
                np.testing.assert_array_equal(step[name], other_step[name])


@pytest.mark.parametrize(
    ("sizes", "value_bits", "threads"),
    [((2, 2), 8, 1), ((2, 2), 16, 3), ((3, 1), 16, 1), ((3, 1), 8, 2), ((1, 2, 1), 16, 2)],
)
def test_racks_average_as_one_server_does(sizes: tuple[int, ...], value_bits: Literal[8, 16], threads: int) -> None:
    config = ThcConfig(value_bits=value_bits, granularity=40, **SMALL)
    with RackServers(sizes, ["--threads", str(threads), "--slots", "64"]) as racks, ParameterServer() as single:
        addresses = [racks.address_of(worker) for worker in range(racks.workers)]
        averages = averages_of(addresses, config)
        assert_same(averages, averages_of([single.address] * racks.workers, config))
    assert np.any(averages[0][0]["head"])


FAULTS = ["--faults", "drop=0.01,duplicate=0.01,reorder=0.01"]


@pytest.mark.parametrize("at", ["leaves", "root and leaves"])
def test_lost_copied_and_late_datagrams_change_nothing(at: str) -> None:
    config = ThcConfig(**SMALL)
    everywhere = FAULTS if at == "root and leaves" else []
    with (
        RackServers((2, 2), ["--threads", "2", *everywhere], leaf_arguments=[] if everywhere else FAULTS) as racks,
        ParameterServer() as single,
    ):
        averages = averages_of([racks.address_of(worker) for worker in range(4)], config)
        assert_same(averages, averages_of([single.address] * 4, config))


def test_two_jobs_at_once_with_keys(tmp_path: Path) -> None:
    key_file = tmp_path / "thc.key"
    key_file.touch(mode=0o600)
    key_file.write_text(f"1 {'5a' * 32}\n2 {'a5' * 32}\n")
    config = ThcConfig(**SMALL)
    with (
        RackServers((2, 2), ["--threads", "2", "--key-file", str(key_file)]) as racks,
        ParameterServer() as single,
        ThreadPoolExecutor(2) as pool,
    ):
        addresses = [racks.address_of(worker) for worker in range(4)]
        keys = {1: bytes.fromhex("5a" * 32), 2: bytes.fromhex("a5" * 32)}
        jobs = list(pool.map(lambda job: averages_of(addresses, config, job=job, key=keys[job]), keys))
        expected = averages_of([single.address] * 4, config)
    for averages in jobs:
        assert_same(averages, expected)


def test_root_that_starts_after_the_leaves() -> None:
    config = ThcConfig(**SMALL)
    with RackServers((1, 1)) as racks, ThreadPoolExecutor(1) as pool:
        racks.root.stop()
        training = pool.submit(averages_of, [leaf.address for leaf in racks.leaves], config)
        time.sleep(1.5)  # long enough for a leaf to say that it has no answer
        racks.start_root()
        averages = training.result(30)
    for name in SIZES:
        np.testing.assert_array_equal(averages[0][-1][name], averages[1][-1][name])


def test_a_root_that_never_answers_is_named() -> None:
    with RackServers((1, 1)) as racks:
        racks.root.stop()
        with pytest.raises(DeadlineError, match=r"is that of a rack .* no answer from the root"):
            Session(
                [racks.leaves[0].address],
                job=1,
                worker=0,
                workers=2,
                config=ThcConfig(**SMALL),
                timeouts=Timeouts(connect_s=2.0),
            )


class EndedError(Exception):
    """A worker of Training has ended."""


class Training:
    """Workers, one a thread, each at its rack's server, that average until they get an error."""

    def __init__(self, racks: RackServers, **settings: Any) -> None:
        self._stop = threading.Event()
        self._steps = [0] * racks.workers
        self._pool = ThreadPoolExecutor(racks.workers)
        self._results = [
            self._pool.submit(self._train, worker, racks.address_of(worker), racks.workers, settings)
            for worker in range(racks.workers)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        for result in self._results:
            result.result()  # raises what a worker found wrong with the averages

    def _train(self, worker: int, address: str, workers: int, settings: dict[str, Any]) -> ThcError | None:
        config = ThcConfig(**SMALL)
        try:
            timeouts = Timeouts(operation_s=DEADLINE_S, connect_s=10.0)
            with Session(
                [address], job=1, worker=worker, workers=workers, config=config, timeouts=timeouts, **settings
            ) as session:
                averager = GradientAverager(session, Compressor(config, workers=workers, worker=worker))
                while not self._stop.is_set():
                    gradient = {"w": np.full(50_000, worker, np.float32)}
                    averager.average(gradient)
                    # Error feedback moves it a little; a rack that is missing, or there twice, by much more.
                    assert abs(gradient["w"].mean() - (workers - 1) / 2) < 0.2
                    self._steps[worker] += 1
        except ThcError as error:
            return error
        return None

    def wait_for_steps(self, steps: int) -> None:
        """All have made so many more."""
        target = [made + steps for made in self._steps]
        deadline = time.monotonic() + 30
        while any(made < wanted for made, wanted in zip(self._steps, target, strict=True)):
            if ended := [result.result() for result in self._results if result.done()]:
                raise EndedError(*ended)
            assert time.monotonic() < deadline, self._steps
            time.sleep(0.01)

    def errors(self) -> list[ThcError | None]:
        return [result.result(10 * DEADLINE_S) for result in self._results]


def train_anew(racks: RackServers) -> None:
    """Other processes train. Those that meet the last ones of before must start once more."""
    for _ in range(3):
        with contextlib.suppress(EndedError), Training(racks) as training:
            training.wait_for_steps(3)
            return
    pytest.fail("three trainings one after the other have ended")


def test_a_killed_leaf_is_named_on_the_other_rack() -> None:
    with RackServers((2, 2)) as racks:
        with Training(racks) as training:
            training.wait_for_steps(3)
            racks.leaves[1].process.kill()
            racks.leaves[1].process.wait(10)
            errors = training.errors()
        for error in errors[:2]:
            assert isinstance(error, DeadlineError)
            assert "rack 1 of 2" in str(error)
        for error in errors[2:]:
            assert isinstance(error, DeadlineError)
            assert f"server {racks.leaves[1].address}" in str(error)
            assert re.search("has not answered|does not answer", str(error))
        racks.restart_leaf(1)
        train_anew(racks)


def test_a_restarted_leaf_ends_the_training_and_takes_new_workers() -> None:
    with RackServers((2, 2), ["--threads", "2"]) as racks:
        with Training(racks) as training:
            training.wait_for_steps(3)
            racks.leaves[1].process.kill()
            racks.leaves[1].process.wait(10)
            racks.restart_leaf(1)
            errors = training.errors()
        assert all(isinstance(error, RestartError) for error in errors), errors
        train_anew(racks)


def test_a_killed_root_is_named_on_all_workers() -> None:
    with RackServers((2, 2)) as racks:
        with Training(racks) as training:
            training.wait_for_steps(3)
            racks.root.process.kill()
            racks.root.process.wait(10)
            errors = training.errors()
        for error in errors:
            assert isinstance(error, DeadlineError)
            assert "the root, the server above its server, does not answer" in str(error)
        racks.start_root()
        train_anew(racks)


def test_a_restarted_root_gives_right_averages_or_an_error() -> None:
    with RackServers((2, 2), ["--threads", "2"]) as racks, Training(racks) as training:
        training.wait_for_steps(3)
        racks.root.process.kill()
        racks.root.process.wait(10)
        racks.start_root()
        try:
            training.wait_for_steps(3)
        except EndedError:  # some workers had a result that others had not
            assert {type(error) for error in training.errors()} == {RestartError}
