"""Many small workers of one job on a host: a session and a thread each, which push the same codes again and again."""

import argparse
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from byteps_thc._native import _core
from byteps_thc._net.session import Session
from byteps_thc._scheme.adding.server_codes import ServerCodes
from congestion.control import Words, serve, wait_until
from thc_lab.namespaces import inside


class Worker:
    """One worker of the job."""

    def __init__(self, servers: list[str], job: int, worker: int, workers: int, codes: int) -> None:
        self.session = Session(servers, job=job, worker=worker, workers=workers, codes=ServerCodes(), run="crowd")
        size = _core.code_bytes(codes, self.session.code_bits)
        self._codes = np.random.default_rng(worker).integers(0, 256, size, np.uint8)
        self._aggregate = self.session.new_aggregate(codes)
        self._contributions = np.zeros(self.session.chunks(codes), np.uint8)
        self._workers = workers

    def average(self, begin_s: float, limit_s: float) -> float | None:
        """When it had all sums; None if that would have been later than limit_s from now."""
        wait_until(begin_s)
        operation = self.session.push_codes(0, self._codes, self._aggregate, self._contributions)
        if not self.session.is_done(operation, limit_s):
            return None
        end_s = time.monotonic()
        assert (self._contributions == self._workers).all()
        return end_s


class Crowd:
    """Carries out commands."""

    def __init__(self, first: int, here: int, workers: int) -> None:
        self._numbers, self._workers_in_all = range(first, first + here), workers
        self._pool = ThreadPoolExecutor(here)
        self._workers: list[Worker] = []

    def open(self, words: Words) -> Words:
        """servers, job, parameters."""
        start = time.monotonic()

        def join(number: int) -> Worker:
            return Worker(words["servers"], words["job"], number, self._workers_in_all, words["parameters"])

        self._workers = list(self._pool.map(join, self._numbers))
        return {"seconds": time.monotonic() - start, **self._counts()}

    def average(self, words: Words) -> Words:
        """begin_s, limit_s: see Rank.average."""
        ends_s = list(self._pool.map(lambda worker: worker.average(words["begin_s"], words["limit_s"]), self._workers))
        return {"late": None in ends_s, "ends_s": ends_s, "average": 0, **self._counts()}

    def close(self, _: Words) -> Words:
        """Leave the server."""
        for worker in self._workers:
            worker.session.close()
        return {}

    def _counts(self) -> Words:
        used = resource.getrusage(resource.RUSAGE_SELF)
        counters = [worker.session.counters() for worker in self._workers]
        sums = {name: sum(each[name] for each in counters) for name in counters[0]}
        return {
            "cpu_s": used.ru_utime + used.ru_stime,
            "packets": sums["codes_sent"] + sums["norm_sent"],
            "repeated": sums["retransmissions"],
            "rejoins": sums["rejoins"],
            "moves": 0,
            "codes_per_packet": self._workers[0].session.codes_per_packet,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True, help="of this program")
    parser.add_argument("--ranks", type=int, required=True, help="programs")
    parser.add_argument("--each", type=int, required=True, help="workers of a program")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--control", type=Path, required=True)
    args = parser.parse_args()
    with inside(args.namespace):
        # Threads are in the namespace of the one that starts them: the pool's, too.
        crowd = Crowd(args.rank * args.each, args.each, args.ranks * args.each)
        serve(args.control, args.rank, {"open": crowd.open, "average": crowd.average, "close": crowd.close})


if __name__ == "__main__":
    main()
