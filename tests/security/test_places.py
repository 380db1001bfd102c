"""A worker's place: the next process gets it when the last is gone, and no process while the last lives."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from pushed_codes import push_codes

from byteps_thc._base.errors import RestartError
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session, Timeouts, UdpConfig
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_lab.packet_faults import packet_faults

LOOPBACK = UdpConfig(local="127.0.0.1:0")
CODES = np.full(512, 0x11, np.uint8)
#: A worker that is gone is replaced after 1 to 2 s; on a machine with much to do, later.
GENEROUS_S = 15.0


def join(address: str, worker: int, workers: int, **settings: object) -> Session:
    return Session(
        [address],
        job=1,
        worker=worker,
        workers=workers,
        codes=ServerCodes(),
        backend=LOOPBACK,
        **settings,  # type: ignore[arg-type]
    )


WORKER = """
    import sys, time
    from byteps_thc._scheme.adding.server_codes import ServerCodes
    from byteps_thc._net.session import Session, UdpConfig
    backend = UdpConfig(local="127.0.0.1:0")
    session = Session([sys.argv[1]], job=1, worker=1, workers=2, codes=ServerCodes(), backend=backend)
    print("joined", flush=True)
    time.sleep(60)
"""


@contextmanager
def worker_process(address: str) -> Iterator[subprocess.Popen[str]]:
    """Worker 1 of 2, joined, in a process of its own."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(WORKER), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "joined\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP], ids=lambda ending: ending.name)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_worker_that_is_gone_is_replaced(ending: signal.Signals, threads: int) -> None:
    with (
        ParameterServer(["--threads", str(threads)]) as server,
        join(server.address, 0, 2) as survivor,
        worker_process(server.address) as process,
    ):
        os.kill(process.pid, ending)
        start = time.monotonic()
        with join(server.address, 1, 2):
            assert time.monotonic() - start < GENEROUS_S
            with pytest.raises(RestartError):
                push_codes(survivor, 0, CODES).wait()


@pytest.mark.parametrize(("loss", "rounds"), [(0.001, 50), (0.05, 15)])
def test_closing_and_opening_again_under_loss_restarts_nobody(loss: float, rounds: int) -> None:
    """All workers close and open again and again, each when it has its last result, whether or not the others do."""
    workers = 3
    flags = ["--faults", f"drop={loss},seed=3"]
    timeouts = Timeouts(connect_s=60.0, operation_s=60.0)  # for a loaded machine

    def work(address: str, worker: int) -> int:
        for _ in range(rounds):
            with join(address, worker, workers, timeouts=timeouts) as session:
                for _ in range(3):
                    push_codes(session, 0, CODES).wait()
        return rounds

    with (
        packet_faults(drop=loss),
        ParameterServer(flags, stop_timeout_s=0.5) as server,
        ThreadPoolExecutor(workers) as pool,
    ):
        assert list(pool.map(partial(work, server.address), range(workers))) == [rounds] * workers
