"""Limits of jobs, as thc-ps is told them; tests/worker_dpdk/session speaks the protocol to the real program."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._scheme.wire.layout import ErrorReason

if TYPE_CHECKING:
    from raw_worker import MakeWorker, Worker


def test_idle_job_expires(make_worker: MakeWorker) -> None:
    with ParameterServer(["--idle-timeout", "0.3"]) as server:
        worker = make_worker(server.address, 0)
        worker.join()
        worker.send_codes([1] * 32)
        assert any(reason_after(0.6, worker) == ErrorReason.UNKNOWN_JOB for _ in range(10))


def reason_after(silence_s: float, worker: Worker) -> ErrorReason:
    """The answer to another copy; a server that was not running meanwhile knows the job yet, as it comes to it now."""
    time.sleep(silence_s)
    worker.retransmit([1] * 32)
    return worker.receive().reason


def test_job_limits(make_worker: MakeWorker) -> None:
    with ParameterServer(["--max-jobs", "1", "--slots", "8"]) as server:
        assert make_worker(server.address, 0).join().slots == 8
        assert make_worker(server.address, 0, job=2).say_hello().reason == ErrorReason.TOO_MANY_JOBS
    with ParameterServer(["--max-memory", "1KiB"]) as server:
        assert make_worker(server.address, 0).say_hello().reason == ErrorReason.TOO_MANY_JOBS
