"""A worker of the soak: worker.py SERVER WORKER WORKERS. Checks every sum, and opens a new session after an error.

Every step has both stages, norms and codes. Writes a line after every step and error. Ends with 3 when a maximum or a
sum is wrong, and with 0 at SIGTERM. The key of the job is in the file that THC_KEY_FILE names, if any.
"""

import itertools
import signal
import sys
import time

import numpy as np

from byteps_thc._base.arrays import F32, U8
from byteps_thc._base.errors import ThcError
from byteps_thc._net.session import Session, Timeouts, UdpConfig
from byteps_thc._scheme.adding.server_codes import ServerCodes

COUNT = 8 * 1024
NORMS = 64
WRONG = 3


def norms_of(worker: int, step: int) -> F32:
    """A worker's norms for the preliminary stage of a step."""
    return np.random.default_rng([worker, step, 1]).random(NORMS, np.float32)


def codes_of(worker: int, step: int) -> U8:
    """A worker's codes for a step of its session, unlike any other worker's or step's."""
    return np.random.default_rng([worker, step]).integers(0, 256, COUNT // 2, np.uint8)


def expected_sum(codes: ServerCodes, workers: int, step: int) -> U8:
    """Return the sum of all workers' table values in a step."""
    values = np.asarray(codes.resolve(workers).table.values, np.uint8)
    total = np.zeros(COUNT, np.uint8)
    for worker in range(workers):
        packed = codes_of(worker, step)
        total += values[np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)]
    return total


def average(session: Session, codes: ServerCodes, worker: int, workers: int) -> None:
    """Push step after step, and check all results; returns never."""
    for step in itertools.count():
        max_norms = np.empty(NORMS, np.float32)
        session.wait(session.push_norms(step % 4, norms_of(worker, step), max_norms))
        if not np.array_equal(max_norms, np.max([norms_of(each, step) for each in range(workers)], axis=0)):
            end(f"wrong maximum in step {step}")
        aggregate = session.new_aggregate(COUNT)
        contributions = np.zeros(session.chunks(COUNT), np.uint8)
        session.wait(session.push_codes(step % 4, codes_of(worker, step), aggregate, contributions))
        if not (contributions == workers).all() or not np.array_equal(aggregate, expected_sum(codes, workers, step)):
            end(f"wrong sum in step {step}")
        print("step", flush=True)


def end(why: str) -> None:
    """Print the fault, and end."""
    print(why, flush=True)
    sys.exit(WRONG)


def main() -> None:
    """Open a session, and another one after each error."""
    server, worker, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    codes = ServerCodes(bits=4, codes_per_packet=512)  # several packets a step, a lap of the slots in some fifty steps
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        try:
            with Session(
                [server],
                job=1,
                worker=worker,
                workers=workers,
                codes=codes,
                timeouts=Timeouts(connect_s=10, operation_s=10),
                backend=UdpConfig(local="127.0.0.1:0"),
            ) as session:
                average(session, codes, worker, workers)
        except ThcError as error:
            print(f"error {type(error).__name__}", flush=True)
            time.sleep(0.5)


if __name__ == "__main__":
    main()
