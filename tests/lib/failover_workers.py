"""Workers as threads of a test, which sum over several thc-ps that come and go, and check every sum and maximum."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import _core_test
import numpy as np
import numpy.typing as npt
from torch._C._distributed_c10d import HashStore, PrefixStore, Store

from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._native import _core
from byteps_thc._net.failover.opening import open_failover_session
from byteps_thc._net.servers import NetworkConfig, ServersTransport
from byteps_thc._scheme.adding.server_codes import ServerCodes

CONFIG = ServerCodes(codes_per_packet=1024)
COUNT = 5000  # codes of a piece
NORMS = 6  # its fingerprint included


class Workers:
    """Workers, each a thread that averages `pieces` pieces a step until stop() or an error.

    network: returns the network of worker i. deadline_s: for its session. A worker has two pieces in flight, whose
    stages may wait at different servers. before_step: called with worker and step. store: the workers', a new one if
    None.
    """

    def __init__(
        self,
        network: Callable[[int], NetworkConfig],
        workers: int,
        *,
        pieces: int = 5,
        deadline_s: float = 20.0,
        before_step: Callable[[int, int], None] = lambda _worker, _step: None,
        store: Store | None = None,
    ) -> None:
        self.workers, self.pieces, self.deadline_s = workers, pieces, deadline_s
        self._network, self._before_step = network, before_step
        self._store = store or HashStore()
        self._together = threading.Barrier(workers)
        self._last_step = 1 << 30
        self.steps = [0] * workers
        self.errors: list[BaseException | None] = [None] * workers
        self.recorders = [StatsRecorder() for _ in range(workers)]
        self.sessions: list[Any] = [None] * workers
        self._threads = [threading.Thread(target=self._run, args=(worker,), daemon=True) for worker in range(workers)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, steps: int, timeout_s: float = 30.0) -> None:
        """Wait until all workers have done so many steps more; raises the first error of one."""
        goal = max(self.steps) + steps
        self._wait(lambda: min(self.steps) >= goal, timeout_s, f"{goal} steps")

    def wait_for_servers(self, servers: Sequence[str], timeout_s: float = 30.0) -> None:
        """Wait until all workers use these servers and no others."""
        wanted = tuple(servers)
        self._wait(lambda: all(each.servers == wanted for each in self.sessions), timeout_s, f"servers {wanted}")

    def stop(self) -> None:
        """End all workers after the same step; raises the first error of one."""
        self._last_step = max(self.steps) + 3
        self.join()
        self._raise()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads), f"workers hang after {self.steps} steps"

    def moves(self) -> list[int]:
        return [recorder.snapshot().server_moves for recorder in self.recorders]

    def _wait(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            self._raise()
            assert time.monotonic() < deadline, f"{what} were not reached: {self.steps}, {self.sessions[0].servers}"
            time.sleep(0.01)

    def _raise(self) -> None:
        for error in self.errors:
            if error is not None:
                raise error

    def _run(self, worker: int) -> None:
        try:
            self._work(worker)
        except BaseException as error:
            self.errors[worker] = error

    def _work(self, worker: int) -> None:
        recorder = self.recorders[worker]
        session = open_failover_session(
            self._network(worker),
            PrefixStore("failover", self._store),
            worker,
            self.workers,
            self.deadline_s,
            moved=lambda: recorder.add(server_moves=1),
            lost=lambda: recorder.add(failover_losses=1),
        )
        self.sessions[worker] = session
        transport = ServersTransport(session, recorder)
        transfers = [transport.new_transfer(f"{piece}", NORMS, COUNT) for piece in range(self.pieces)]
        try:
            while self.steps[worker] < self._last_step:
                step = self.steps[worker]
                self._before_step(worker, step)
                self._average(worker, step, transfers)
                self.steps[worker] += 1
            self._together.wait(30)  # a worker that is done must not leave the others, which may lack something
        finally:
            transport.close()

    def _average(self, worker: int, step: int, transfers: Sequence[Any]) -> None:
        for piece, transfer in enumerate(transfers):
            transfer.send_norms(norms_of(worker, step, piece))
        for piece, transfer in enumerate(transfers):
            np.testing.assert_array_equal(
                transfer.wait_norms(), np.max([norms_of(each, step, piece) for each in range(self.workers)], axis=0)
            )
            transfer.codes[:] = codes_of(worker, step, piece)
            transfer.send_codes()
        for piece, transfer in enumerate(transfers):
            transfer.wait_sums()
            sums, contributions = transfer.aggregate()
            np.testing.assert_array_equal(contributions, self.workers)
            np.testing.assert_array_equal(sums, sum_of(self.workers, step, piece))


def norms_of(worker: int, step: int, piece: int) -> npt.NDArray[np.float32]:
    """The same two words on all workers, and norms of its own."""
    own = np.random.default_rng((worker, step, piece)).random(NORMS - 2, np.float32)
    word = np.array([step % 1000, 999 - step % 1000], np.int32).view(np.float32)
    return np.concatenate([word, own])


def codes_of(worker: int, step: int, piece: int) -> npt.NDArray[np.uint8]:
    random = np.random.default_rng((worker, step, piece, 1))
    return random.integers(0, 256, _core.code_bytes(COUNT, CONFIG.bits), np.uint8)


def sum_of(workers: int, step: int, piece: int) -> npt.NDArray[np.int64]:
    """Return the sums of a server that has all workers' codes."""
    table = np.asarray(CONFIG.resolve(workers).table.values, np.int64)
    total, unpacked = np.zeros(COUNT, np.int64), np.empty(COUNT, np.uint8)
    for worker in range(workers):
        _core_test.unpack(codes_of(worker, step, piece), unpacked, bits=CONFIG.bits)
        total += table[unpacked]
    return total
