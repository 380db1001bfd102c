"""A worker process of test_failures: averages the same gradient again and again and reports every average.

Usage: worker_process.py ADDRESS WORKER STEPS QUORUM PIPE_FD
Sends (worker, "joined") through the pipe and begins when its standard input ends. Then it sends
(worker, step, average), and (worker, "error", class, message, missing workers) at an error.
"""

from __future__ import annotations

import sys
import time
from multiprocessing.connection import Connection

import numpy as np

from byteps_thc import Compressor, GradientAverager, Session, ThcConfig, ThcError
from byteps_thc._net.session import Timeouts

WORKERS = 3
CONFIG = ThcConfig(partition_bytes=1 << 16, codes_per_packet=1024)
COORDINATES = 100_000
DEADLINE_S = 4.0


def gradient_of(worker: int) -> np.ndarray:
    return np.random.default_rng(worker).standard_normal(COORDINATES, np.float32)


def train(address: str, worker: int, steps: int, quorum: int, events: Connection) -> None:
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
            events.send((worker, "joined"))
            sys.stdin.read()
            averager = GradientAverager(session, Compressor(CONFIG, workers=WORKERS, worker=worker))
            for step in range(steps):
                gradient = gradient_of(worker)
                averager.average({"w": gradient})
                events.send((worker, step, gradient))
                time.sleep(0.02)
    except ThcError as error:
        events.send((worker, "error", type(error).__name__, str(error), getattr(error, "missing_workers", ())))


if __name__ == "__main__":
    train(sys.argv[1], *map(int, sys.argv[2:5]), Connection(int(sys.argv[5])))
