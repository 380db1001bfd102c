"""Real worker processes and a real thc-ps, of which one is killed in the middle of training."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait

import numpy as np
import pytest

from byteps_thc import Compressor, GradientAverager, Session, ThcConfig, ThcError
from byteps_thc.errors import DeadlineError, RestartError
from byteps_thc.launch import ParameterServer
from byteps_thc.session import Timeouts

WORKERS = 3
CONFIG = ThcConfig(partition_bytes=1 << 16, codes_per_packet=1024)
COORDINATES = 100_000
DEADLINE_S = 4.0


def gradient_of(worker: int) -> np.ndarray:
    return np.random.default_rng(worker).standard_normal(COORDINATES, np.float32)


def train(address: str, worker: int, steps: int, quorum: int | None, events: Connection) -> None:
    """Average again and again; report (worker, step, average) and at the end (worker, "error", message, missing)."""
    try:
        with Session(
            [address],
            job=1,
            worker=worker,
            workers=WORKERS,
            config=CONFIG,
            quorum=quorum,
            timeouts=Timeouts(operation_s=DEADLINE_S),
        ) as session:
            averager = GradientAverager(session, Compressor(CONFIG, workers=WORKERS, worker=worker))
            for step in range(steps):
                gradient = gradient_of(worker)
                averager.average({"w": gradient})
                events.send((worker, step, gradient))
                time.sleep(0.02)
    except ThcError as error:
        events.send((worker, "error", type(error).__name__, str(error), getattr(error, "missing_workers", ())))


class Processes:
    """The worker processes of a test. Each reports through a pipe of its own: a lock they shared could die with one."""

    def __init__(self, address: str, steps: int, quorum: int | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes = []
        for worker in range(WORKERS):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=train, args=(address, worker, steps, quorum, theirs))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join(10)
        for pipe in self.pipes:
            pipe.close()

    def event(self, timeout_s: float = 60.0) -> tuple:
        """The next report of any worker; the pipes of killed ones end."""
        deadline = time.monotonic() + timeout_s
        while ready := wait(self.pipes, deadline - time.monotonic()):
            try:
                return ready[0].recv()
            except EOFError:
                self.pipes.remove(ready[0])
                ready[0].close()
        pytest.fail(f"no worker reported anything for {timeout_s} s")

    def wait_for_step(self, step: int) -> dict[int, list[np.ndarray]]:
        """Until every worker has finished that step; returns the averages of all workers by step."""
        waiting = set(range(WORKERS))
        averages: dict[int, list[np.ndarray]] = {}
        while waiting:
            worker, finished, *report = self.event()
            assert finished != "error", report
            averages.setdefault(finished, []).append(report[0])
            if finished == step:
                waiting.discard(worker)
        return averages

    def kill(self, worker: int) -> None:
        pid = self.processes[worker].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def errors(self, workers: set[int]) -> dict[int, tuple]:
        """The error of each of these workers."""
        found: dict[int, tuple] = {}
        while set(found) != workers:
            event = self.event(DEADLINE_S * 5)
            if event[1] == "error":
                found[event[0]] = event
        return found


def error_against_mean(average: np.ndarray, workers: Iterable[int]) -> float:
    """Normalised square error of an average against the plain mean of these workers' gradients.

    With error feedback an average is off by the residuals as well. One that lost a worker, repeated it or has one too
    many is off by a third or more.
    """
    truth = np.mean([gradient_of(worker) for worker in workers], axis=0)
    return float(((average - truth) ** 2).sum() / (truth**2).sum())


def test_a_killed_worker_is_named_on_the_others(thc_ps: ParameterServer) -> None:
    with Processes(thc_ps.address, steps=10_000) as processes:
        processes.wait_for_step(3)
        processes.kill(1)
        killed_at = time.monotonic()
        for error in processes.errors({0, 2}).values():
            assert error[2] == DeadlineError.__name__
            assert error[4] == (1,), error
        assert time.monotonic() - killed_at < DEADLINE_S * 2.5


def test_a_quorum_goes_on_without_a_killed_worker(thc_ps: ParameterServer) -> None:
    with Processes(thc_ps.address, steps=100, quorum=2) as processes:
        processes.wait_for_step(3)
        processes.kill(1)
        last: dict[int, np.ndarray] = {}
        while set(last) != {0, 2}:
            worker, step, *report = processes.event()
            assert step != "error", report
            if step == 99:
                (last[worker],) = report
    np.testing.assert_array_equal(last[0], last[2])
    assert error_against_mean(last[0], (0, 2)) < 0.15


def test_a_restarted_server_gives_right_averages_or_an_error() -> None:
    with ParameterServer() as first:
        port = int(first.address.rpartition(":")[2])
        with Processes(first.address, steps=60) as processes:
            averages = processes.wait_for_step(3)
            first.process.kill()
            first.process.wait(10)
            with ParameterServer(port=port):
                failed: list[tuple] = []
                ended: set[int] = set()
                while len(ended) < WORKERS:
                    event = processes.event(DEADLINE_S * 5)
                    if event[1] == "error":
                        failed.append(event)
                        ended.add(event[0])
                        continue
                    averages.setdefault(event[1], []).append(event[2])
                    if event[1] == 59:
                        ended.add(event[0])
    assert all(error[2] in (RestartError.__name__, DeadlineError.__name__) for error in failed), failed
    assert len(averages) >= 4
    for step, copies in averages.items():
        error = error_against_mean(copies[0], range(WORKERS))
        assert error < 0.15, (step, error)
        for copy in copies[1:]:
            np.testing.assert_array_equal(copy, copies[0])
