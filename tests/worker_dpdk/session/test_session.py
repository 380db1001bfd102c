"""Sessions against the real thc-ps on loopback. Workers are threads here; their polling threads are in C++ anyway."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
from joined_sessions import LOOPBACK, check_sums, next_job, sessions
from pushed_codes import push_codes

from byteps_thc._base.errors import (
    ConfigurationError,
    DeadlineError,
    DpdkUnavailableError,
    InputError,
    ServerRefusedError,
)
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._native._comm import has_dpdk
from byteps_thc._net.session import DpdkConfig, Session, Timeouts
from byteps_thc._scheme.adding.server_codes import ServerCodes
from byteps_thc._scheme.arithmetic import DIGEST_BITS, arithmetic_version, version_name


@pytest.fixture(scope="module")
def server() -> Iterator[ParameterServer]:
    with ParameterServer() as server:
        yield server


@pytest.fixture(scope="module")
def sharded_server() -> Iterator[ParameterServer]:
    with ParameterServer(["--threads", "2"]) as server:
        yield server


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 8])
def test_exact_sums(sharded_server: ParameterServer, bits: int, workers: int) -> None:
    config = ServerCodes(bits=bits)
    with ExitStack() as stack:
        joined = sessions(stack, [sharded_server.address], workers, config)
        check_sums(joined, config, [0, 1, 63, 64, 1023, 1024, 1025, 100_001])


def test_partitions_are_spread_over_servers(server: ParameterServer, sharded_server: ParameterServer) -> None:
    config = ServerCodes()
    with ExitStack() as stack:
        joined = sessions(stack, [server.address, sharded_server.address], 2, config)
        check_sums(joined, config, [5000, 10_000, 3000, 64, 0, 20_000], steps=3)


@pytest.mark.parametrize(
    "other",
    [{"seed": 2}, {"p": 1 / 16}, {"rotation_block": 4096}, {"partition_bytes": 1 << 20}, {"rounding": "independent"}],
    ids=str,
)
def test_different_settings_of_the_compression_are_refused(server: ParameterServer, other: dict[str, object]) -> None:
    job = next(next_job)
    common = {"seed": 1, "p": 1 / 32, "granularity": 30}
    with (
        Session([server.address], job=job, worker=0, workers=2, codes=ServerCodes(**common), backend=LOOPBACK),
        pytest.raises(ServerRefusedError, match=rf"\b{next(iter(other))}\b.* of worker 1 differs from the job"),
    ):
        Session([server.address], job=job, worker=1, workers=2, codes=ServerCodes(**common | other), backend=LOOPBACK)


def test_another_arithmetic_is_refused_by_name(server: ParameterServer, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = {"job": next(next_job), "workers": 2, "codes": ServerCodes(), "backend": LOOPBACK}
    with Session([server.address], worker=0, **shared):
        own = version_name(arithmetic_version())
        other = arithmetic_version() + (1 << DIGEST_BITS)
        monkeypatch.setattr("byteps_thc._net.session.arithmetic_version", lambda: other)
        with pytest.raises(ServerRefusedError, match="arithmetic of worker 1 differs") as said:
            Session([server.address], worker=1, **shared)
        assert f"(this worker: {version_name(other)}" in str(said.value)
        assert f"job: {own}" in str(said.value)
        assert "install the same version of byteps_thc" in str(said.value)


def join_with(server: ParameterServer, job: int, worker: int, codes_per_packet: int | Literal["auto"]) -> Session:
    config = ServerCodes(codes_per_packet=codes_per_packet)
    return Session([server.address], job=job, worker=worker, workers=2, codes=config, backend=LOOPBACK)


def test_packets_are_as_large_as_the_path_takes_by_default(sharded_server: ParameterServer) -> None:
    with ExitStack() as stack:
        joined = sessions(stack, [sharded_server.address], 2)
        assert [session.codes_per_packet for session in joined] == [16384, 16384]
        check_sums(joined, ServerCodes(), [0, 1, 16384, 16385, 100_001])


@pytest.mark.parametrize("codes_per_packet", [64, 1024, 8192])
def test_auto_packets_are_the_jobs_where_those_are_smaller(
    sharded_server: ParameterServer, codes_per_packet: int
) -> None:
    """As with a switch, and with earlier workers behind a smaller MTU."""
    job = next(next_job)
    with (
        join_with(sharded_server, job, 0, codes_per_packet) as first,
        join_with(sharded_server, job, 1, "auto") as second,
    ):
        assert second.codes_per_packet == codes_per_packet
        check_sums([first, second], ServerCodes(), [1, 3 * codes_per_packet + 1])


@pytest.mark.parametrize(("jobs", "own"), [(32768, "auto"), (512, 1024), (512, 16384)])
def test_packets_of_another_size_are_refused(server: ParameterServer, jobs: int, own: int | Literal["auto"]) -> None:
    """The largest that the path takes are 16384, also for auto."""
    job = next(next_job)
    with join_with(server, job, 0, jobs), pytest.raises(ServerRefusedError) as said:
        join_with(server, job, 1, own)
    size = 16384 if own == "auto" else own
    assert "codes_per_packet of worker 1 differs from the job's" in str(said.value)
    assert f"this worker: {size}, job: {jobs}" in str(said.value)
    assert f"ServerCodes(codes_per_packet={min(jobs, 16384)}) on all of them" in str(said.value)


def test_smaller_packets_wait_for_the_job_of_larger_ones_to_end(server: ParameterServer) -> None:
    """One of two servers takes small packets. Worker 2 learns this before worker 0, which is in the other job."""
    job = next(next_job)

    def join_some(servers: list[str], worker: int, codes_per_packet: int | Literal["auto"]) -> Session:
        config = ServerCodes(codes_per_packet=codes_per_packet)
        return Session(servers, job=job, worker=worker, workers=3, codes=config, backend=LOOPBACK)

    def come() -> tuple[int, bool]:
        with join_some([server.address, narrow.address], 2, "auto") as session:
            return session.codes_per_packet, has_left.is_set()

    has_left = threading.Event()
    with ExitStack() as stack:
        narrow, pool = stack.enter_context(ParameterServer()), stack.enter_context(ThreadPoolExecutor(1))
        first = stack.enter_context(join_some([server.address], 0, "auto"))
        stack.enter_context(join_some([narrow.address], 1, 1024))
        coming = pool.submit(come)
        with pytest.raises(TimeoutError):
            coming.result(1.0)
        has_left.set()
        first.close()
        assert coming.result(20.0) == (1024, True)


def join_alone(server: ParameterServer, job: int) -> Session:
    return Session([server.address], job=job, worker=0, workers=2, codes=ServerCodes(), backend=LOOPBACK)


def test_duplicate_worker_is_refused(server: ParameterServer) -> None:
    with join_alone(server, 60_002) as first:
        push_codes(first, 0, np.zeros(512, np.uint8))  # repeated until the other worker comes: a sign of life
        with pytest.raises(ServerRefusedError, match="job 60002: worker 0 is already there") as refusal:
            join_alone(server, 60_002)
        assert "another job number (NetworkConfig(job=...), Session(job=...), THC_JOB)" in str(refusal.value)
        assert "its own worker number" in str(refusal.value)


def run_python(code: str, *arguments: str) -> str:
    command = [sys.executable, "-P", "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


LEAK_A_SESSION = """
    import ctypes, os, sys, time
    from byteps_thc._scheme.adding.server_codes import ServerCodes
    from byteps_thc._net.session import Session, UdpConfig
    print(time.monotonic(), flush=True)  # a child would print it again
    session = Session([sys.argv[1]], job=int(sys.argv[2]), worker=0, workers=2, codes=ServerCodes(),
                      backend=UdpConfig(local="127.0.0.1:0"))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))  # never destroyed
"""


def test_the_end_of_the_process_closes_its_sessions(server: ParameterServer) -> None:
    job = next(next_job)
    run_python(LEAK_A_SESSION, server.address, str(job))
    # The GOODBYE of its only worker has ended the job; otherwise another number of workers would be refused.
    Session([server.address], job=job, worker=0, workers=3, codes=ServerCodes(), backend=LOOPBACK).close()


def test_a_forked_child_leaves_the_session_alone(server: ParameterServer) -> None:
    code = (
        LEAK_A_SESSION.replace("workers=2", "workers=1").replace("ctypes.pythonapi", "#")
        + """
    import numpy as np
    from byteps_thc._base.errors import TransportError
    sys.path.append(sys.argv[3])  # tests/lib
    from pushed_codes import push_codes
    child = os.fork()
    if child == 0:
        try:
            push_codes(session, 0, np.zeros(512, np.uint8))
        except TransportError as error:
            print(error, flush=True)
        session.close()
        del session
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(push_codes(session, 0, np.zeros(512, np.uint8)).wait(10).contributions[0])
    """
    )
    library = str(Path(__file__).parents[2] / "lib")
    output = run_python(code, server.address, str(next(next_job)), library).splitlines()
    assert "belongs to the parent process" in output[1]
    assert output[2] == "1"


def test_wait_of_a_second_thread_ends_in_time(server: ParameterServer) -> None:
    """Long before the operation does, whatever the first thread does meanwhile."""
    with ExitStack() as stack:
        (session,) = sessions(stack, [server.address], 1, timeouts=Timeouts(operation_s=30))
        stuck = stack.enter_context(join_alone(server, next(next_job)))
        pushed = push_codes(stuck, 0, np.zeros(512, np.uint8))
        waited: list[float] = []

        def wait() -> None:
            for timeout in (0.2, 1.0):
                start = time.monotonic()
                with pytest.raises(DeadlineError, match="still in flight"):
                    stuck.wait(pushed.stage, timeout)
                waited.append(time.monotonic() - start)

        second = threading.Thread(target=wait)
        second.start()
        while second.is_alive():  # calls of all kinds, one after the other
            push_codes(session, 0, np.zeros(512, np.uint8)).wait(30)
            stuck.counters()
            with suppress(DeadlineError):
                stuck.wait(pushed.stage, 0.01)
        second.join()
        assert len(waited) == 2
        assert max(waited) < 15


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((np.zeros(512, np.int8), np.zeros(1024, np.uint8), np.zeros(1, np.uint8)), "codes"),
        ((np.zeros(511, np.uint8), np.zeros(1024, np.uint8), np.zeros(1, np.uint8)), "codes"),
        ((np.zeros(1024, np.uint8)[::2], np.zeros(1024, np.uint8), np.zeros(1, np.uint8)), "contiguous"),
        ((np.zeros(512, np.uint8), np.zeros(1024, np.uint16), np.zeros(1, np.uint8)), "aggregate"),
        ((np.zeros(512, np.uint8), np.zeros(1024, np.uint8), np.zeros(2, np.uint8)), "contributions"),
        ((np.zeros(512, np.uint8), np.frombuffer(bytes(1024), np.uint8), np.zeros(1, np.uint8)), "aggregate"),
    ],
)
def test_unsuitable_arrays(server: ParameterServer, arrays: tuple[npt.NDArray[np.uint8], ...], message: str) -> None:
    """arrays: codes, sums and contributions."""
    with ExitStack() as stack:
        (session,) = sessions(stack, [server.address], 1, ServerCodes(value_bits=8))
        with pytest.raises(InputError, match=message):
            session.push_codes(0, *arrays)


@pytest.mark.parametrize(
    ("kind", "partition", "array", "message"),
    [
        ("codes", 1 << 16, np.zeros(512, np.uint8), "partition must be an integer in 0 .. 65535, not 65536"),
        ("norms", -1, np.ones(1, np.float32), "partition must be"),
        ("codes", "w", np.zeros(512, np.uint8), "partition must be"),
        ("codes", 0, [0] * 512, "codes is a list, not a NumPy array"),
        ("codes", 0, b"codes", "codes is a bytes"),
        ("norms", 0, [1.0], "norms is a list"),
    ],
)
def test_unsuitable_arguments(
    server: ParameterServer, kind: str, partition: object, array: object, message: str
) -> None:
    with ExitStack() as stack:
        (session,) = sessions(stack, [server.address], 1)
        push = partial(session.push_codes, aggregate=session.new_aggregate(1024), contributions=np.zeros(1, np.uint8))
        if kind == "norms":
            push = partial(session.push_norms, max_norms=np.zeros(1, np.float32))
        with pytest.raises(InputError, match=message):
            push(partition, array)  # type: ignore[arg-type]
        assert push_codes(session, 0, np.zeros(512, np.uint8)).wait(10).contributions[0] == 1


def test_keyboard_interrupt_ends_a_wait(server: ParameterServer) -> None:
    with ExitStack() as stack:
        joined = sessions(stack, [server.address], 2)
        handle = push_codes(joined[0], 0, np.zeros(512, np.uint8))
        # A shell starts background jobs with SIGINT ignored; then Python has no handler for it.
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))

        def wait_from_now() -> None:
            timer.start()
            handle.wait(30)

        try:
            with pytest.raises(KeyboardInterrupt):
                wait_from_now()
        finally:
            timer.join()
            signal.signal(signal.SIGINT, handler)


def test_buffers_are_kept_alive_while_in_flight(server: ParameterServer) -> None:
    with ExitStack() as stack:
        joined = sessions(stack, [server.address], 2)
        for partition in range(50):
            for session in joined:
                push_codes(session, partition, np.zeros(50_000, np.uint8))  # nobody keeps the handle
        last = [push_codes(session, 50, np.zeros(512, np.uint8)) for session in joined]
        for handle in last:
            handle.wait(30)


def test_arrays_may_use_the_session_when_they_are_let_go(server: ParameterServer) -> None:
    class Codes(np.ndarray):
        def __del__(self) -> None:
            if len(pushed) < 1000:
                pushed.append(push_codes(session, len(pushed), np.zeros(32, np.uint8)))

    pushed: list[object] = []
    with ExitStack() as stack:
        (session,) = sessions(stack, [server.address], 1)
        for _ in range(20):
            for _ in range(20):
                handle = push_codes(session, 0, np.zeros(32, np.uint8).view(Codes), count=64)
            handle.wait(10)
            del handle
        last = push_codes(session, 0, np.zeros(32, np.uint8))
        last.wait(10)
    assert len(pushed) > 100


@pytest.mark.parametrize("seconds", [float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["connect_s", "operation_s", "loss_s"])
def test_timeouts_must_be_finite(server: ParameterServer, name: str, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match=name), ExitStack() as stack:
        sessions(stack, [server.address], 1, timeouts=Timeouts(**{name: seconds}))


def test_very_long_timeouts(server: ParameterServer) -> None:
    with ExitStack() as stack:
        timeouts = Timeouts(connect_s=1e300, operation_s=1e300)
        joined = sessions(stack, [server.address], 2, timeouts=timeouts)
        handles = [push_codes(session, 0, np.zeros(512, np.uint8)) for session in joined]
        assert handles[0].wait(float("inf")).contributions[0] == 2
        late = push_codes(joined[0], 0, np.zeros(512, np.uint8))
        with pytest.raises(InputError, match="timeout"):
            late.wait(float("nan"))


def test_settings_out_of_range(server: ParameterServer) -> None:
    def join(**settings: object) -> None:
        defaults = {"servers": [server.address], "job": 1, "worker": 0, "workers": 2, "codes": ServerCodes()}
        Session(**(defaults | settings))  # type: ignore[arg-type]

    for settings, message in [
        ({"worker": 2}, "worker must be in 0 .. 1, not 2"),
        ({"job": 1 << 16}, "job"),
        ({"job": -1}, "job must be an integer in 0 .. .*, not -1"),
        ({"workers": "2"}, "workers must be an integer .* not '2'"),
        ({"servers": server.address}, rf"such as \['{server.address}'\], not one string"),
        ({"quorum": 3}, "quorum"),
        ({"backend": "carrier pigeon"}, "backend"),
        ({"timeouts": 5}, r"timeouts must be a Timeouts, not 5: pass Timeouts\("),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            join(**settings)
    with pytest.raises(ConfigurationError, match="at least one server"):
        Session([], job=1, worker=0, workers=2, codes=ServerCodes())


@pytest.mark.skipif(has_dpdk(), reason="this build has DPDK")
def test_dpdk_missing() -> None:
    with pytest.raises(DpdkUnavailableError, match="DPDK"):
        Session(["10.0.0.1"], job=1, worker=0, workers=1, codes=ServerCodes(), backend=DpdkConfig(local="10.0.0.2"))
