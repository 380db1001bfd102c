"""Real worker processes and a real thc-ps, of which one is killed in the middle of training."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np
import pytest

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._scheme.errors import DeadlineError, RestartError

# A program of its own, since a child of multiprocessing could not import this file.
PROGRAM = Path(__file__).with_name("worker_process.py")
_program = runpy.run_path(str(PROGRAM))
WORKERS: int = _program["WORKERS"]
DEADLINE_S: float = _program["DEADLINE_S"]
gradient_of = _program["gradient_of"]


class Processes:
    """The worker processes of a test. Each reports through a pipe of its own: a lock they shared could die with one."""

    def __init__(self, address: str, steps: int, quorum: int | None = None) -> None:
        self.pipes: list[Connection] = []
        self.killed: set[Connection] = set()
        self.processes: list[subprocess.Popen[bytes]] = []
        for worker in range(WORKERS):
            ours, theirs = multiprocessing.Pipe(duplex=False)
            arguments = [address, worker, steps, quorum or WORKERS, theirs.fileno()]
            command = [sys.executable, str(PROGRAM), *map(str, arguments)]
            self.processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()]))
            theirs.close()
            self.pipes.append(ours)

    def __enter__(self) -> Processes:
        """All have joined. One that starts late would use up the others' deadline, or be left behind by a quorum."""
        try:
            for _ in range(WORKERS):
                event = self.event()
                assert event[1] == "joined", event
            for process in self.processes:
                process.stdin.close()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.stdin.close()
            process.kill()
            process.wait(10)
        for pipe in self.pipes:
            pipe.close()

    def event(self, timeout_s: float = 60.0) -> tuple:
        """The next report of any worker; the pipes of killed ones end, some of them in the middle of a report."""
        deadline = time.monotonic() + timeout_s
        reporting = [pipe for pipe in self.pipes if not pipe.closed]
        while ready := wait(reporting, deadline - time.monotonic()):
            pipe = ready[0]
            try:
                return pipe.recv()
            except EOFError:
                pass
            except OSError:
                if pipe not in self.killed:
                    raise
            reporting.remove(pipe)
            pipe.close()
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
        self.killed.add(self.pipes[worker])
        os.kill(self.processes[worker].pid, signal.SIGKILL)

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
        assert time.monotonic() - killed_at < DEADLINE_S * 5, "by far not the 60 s of the default"


def test_a_quorum_goes_on_without_a_killed_worker(thc_ps: ParameterServer) -> None:
    with Processes(thc_ps.address, steps=10_000, quorum=2) as processes:
        last_step = max(processes.wait_for_step(3)) + 96
        processes.kill(1)
        last: dict[int, np.ndarray] = {}
        while set(last) != {0, 2}:
            worker, step, *report = processes.event()
            assert step != "error", report
            if step == last_step:
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
