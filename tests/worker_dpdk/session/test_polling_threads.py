"""Sessions with several polling threads against the real thc-ps on loopback."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import numpy as np
import pytest
from joined_sessions import LOOPBACK, check_sums, expected_sum, in_parallel, make_codes, next_job, push_all, sessions
from pushed_codes import push_codes

from byteps_thc.config import ThcConfig
from byteps_thc.errors import ConfigurationError, DeadlineError, TransportError
from byteps_thc.tools.launch import ParameterServer
from byteps_thc.transport.session import FaultConfig, Session, Timeouts, UdpConfig

SIZES = [0, 1, 64, 1025, 300_001]
FAULTS = {"drop": 0.01, "duplicate": 0.01, "reorder": 0.01}
FAULT_FLAGS = ["--faults", "drop=0.01,duplicate=0.01,reorder=0.01"]


@pytest.fixture(scope="module", params=[1, 2, 4], ids=lambda shards: f"{shards} server threads")
def server(request: pytest.FixtureRequest) -> Iterator[ParameterServer]:
    with ParameterServer(["--threads", str(request.param)]) as server:
        yield server


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_exact_sums(server: ParameterServer, threads: int) -> None:
    config = ThcConfig(codes_per_packet=1024)
    with ExitStack() as stack:
        joined = sessions(stack, [server.address], 3, config, polling_threads=threads)
        check_sums(joined, config, SIZES, steps=2)


def test_workers_may_have_different_numbers_of_them(server: ParameterServer) -> None:
    config = ThcConfig(codes_per_packet=1024)
    job = next(next_job)
    with ExitStack() as stack:
        joined = [
            stack.enter_context(
                Session(
                    [server.address],
                    job=job,
                    worker=worker,
                    workers=3,
                    config=config,
                    backend=LOOPBACK,
                    polling_threads=worker + 1,
                )
            )
            for worker in range(3)
        ]
        check_sums(joined, config, SIZES, steps=2)


def test_servers_with_different_numbers_of_threads() -> None:
    config = ThcConfig(codes_per_packet=1024)
    with ExitStack() as stack:
        servers = [stack.enter_context(ParameterServer(["--threads", str(n)])).address for n in (1, 3, 2)]
        joined = sessions(stack, servers, 2, config, polling_threads=2)
        check_sums(joined, config, [*SIZES, 5000, 64, 20_000], steps=2)


@pytest.mark.parametrize(("threads", "shards"), [(2, 2), (2, 3), (3, 2)])
def test_bit_identical_with_faults_in_each_direction(threads: int, shards: int) -> None:
    config = ThcConfig(codes_per_packet=1024)
    with ParameterServer([*FAULT_FLAGS, "--threads", str(shards)]) as faulty, ExitStack() as stack:
        faults = FaultConfig(**FAULTS)
        joined = sessions(stack, [faulty.address], 3, config, faults=faults, polling_threads=threads)
        check_sums(joined, config, [200_000, 1025, 50_000], steps=2)
        assert all(session.counters()["retransmissions"] > 0 for session in joined)


def test_loss_tolerant_zero_fills() -> None:
    config, count = ThcConfig(codes_per_packet=1024), 1024 * 400
    with ParameterServer(["--faults", "drop=0.02", "--threads", "2"]) as faulty, ExitStack() as stack:
        timeouts = Timeouts(loss_s=2.0)
        joined = sessions(stack, [faulty.address], 2, config, loss_tolerant=True, timeouts=timeouts, polling_threads=2)
        codes = [make_codes(config, [count], worker)[0] for worker in range(2)]
        expected = expected_sum(config, codes, count).reshape(-1, 1024)
        for handle in [push_codes(s, 0, c) for s, c in zip(joined, codes, strict=True)]:
            result = handle.wait(30)
            got = result.contributions != 0
            assert 0 < np.count_nonzero(~got) < 200
            np.testing.assert_array_equal(result.aggregate.reshape(-1, 1024), expected * got[:, None])


def test_a_killed_server_is_one_error_in_time() -> None:
    """Of everything in flight the same one."""
    with ParameterServer(["--threads", "2"]) as server, ExitStack() as stack:
        (session, _) = sessions(stack, [server.address], 2, timeouts=Timeouts(operation_s=2), polling_threads=2)
        handles = [push_codes(session, partition, np.zeros(50_000, np.uint8)) for partition in range(4)]
        server.process.kill()
        start = time.monotonic()
        messages = set()
        for handle in handles:
            with pytest.raises(DeadlineError) as caught:
                handle.wait(30)
            messages.add(str(caught.value))
        assert time.monotonic() - start < 10
        assert len(messages) == 1
        with pytest.raises(DeadlineError):
            push_codes(session, 4, np.zeros(512, np.uint8))


def test_a_server_started_again_sums_what_was_in_flight() -> None:
    """Nobody has had a result before, so nothing is lost: each thread joins its shard again and repeats its packets."""
    config, count = ThcConfig(codes_per_packet=1024), 1 << 20
    with ExitStack() as stack:
        first = ParameterServer(["--threads", "2"])
        stack.callback(first.stop)
        joined = sessions(stack, [first.address], 2, config, polling_threads=2)
        codes = [make_codes(config, [count], worker)[0] for worker in range(2)]
        waiting = push_codes(joined[0], 0, codes[0])
        first.process.kill()
        first.process.wait(10)
        stack.enter_context(ParameterServer(["--threads", "2"], port=int(first.address.rpartition(":")[2])))
        for handle in [waiting, push_codes(joined[1], 0, codes[1])]:
            np.testing.assert_array_equal(handle.wait(30).aggregate, expected_sum(config, codes, count))
        for session in joined:
            assert [thread["rejoins"] for thread in session.thread_counters()] == [1, 1]


def test_closing_fails_what_is_in_flight(server: ParameterServer) -> None:
    with ExitStack() as stack:
        joined = sessions(stack, [server.address], 2, polling_threads=3)
        handles = [push_codes(joined[0], partition, np.zeros(50_000, np.uint8)) for partition in range(10)]
        joined[0].close()
        for handle in handles:
            with pytest.raises(TransportError, match="closed"):
                handle.wait(5)


def test_counters_of_each_thread() -> None:
    config = ThcConfig(codes_per_packet=1024)
    with ParameterServer(["--threads", "2"]) as server, ExitStack() as stack:
        (session,) = sessions(stack, [server.address], 1, config, polling_threads=3)
        push_all(session, make_codes(config, [1024 * 100], 0), [1024 * 100])
        threads = session.thread_counters()
        assert [thread["aggregate_received"] for thread in threads] == [50, 50, 0]
        assert session.counters()["aggregate_received"] == 100
        assert session.counters()["smoothed_rtt_us"] == max(thread["smoothed_rtt_us"] for thread in threads)


def ports_in_a_row(count: int) -> int:
    """The first of so many that nobody had just now."""
    for _ in range(100):
        with ExitStack() as stack:
            first = 0
            # A port above the last one is an OverflowError.
            with suppress(OSError, OverflowError):
                for number in range(count):
                    probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                    probe.bind(("127.0.0.1", first + number))
                    first = first or probe.getsockname()[1]
                return first
    pytest.fail(f"no {count} free UDP ports in a row")


def test_each_thread_has_a_port() -> None:
    """From the given one on; a second session above it does not meet the first one."""
    port = ports_in_a_row(4)
    with ParameterServer(["--threads", "2"]) as server:

        def join(number: int) -> Session:
            backend = UdpConfig(local=f"127.0.0.1:{port + 2 * number}")
            return Session(
                [server.address],
                job=next(next_job),
                worker=0,
                workers=1,
                config=ThcConfig(),
                backend=backend,
                polling_threads=2,
            )

        with join(0), join(1), pytest.raises(TransportError, match=str(port + 1)):
            Session(
                [server.address],
                job=1,
                worker=0,
                workers=1,
                config=ThcConfig(),
                backend=UdpConfig(local=f"127.0.0.1:{port + 1}"),
            )


@pytest.mark.parametrize("threads", [0, -1, 257, 1.5, "2"])
def test_numbers_that_make_no_sense(server: ParameterServer, threads: object) -> None:
    with (
        ExitStack() as stack,
        pytest.raises(ConfigurationError, match=r"polling_threads must be an integer in 1 .. 256"),
    ):
        sessions(stack, [server.address], 1, polling_threads=threads)


def test_pushes_of_many_threads_at_once(server: ParameterServer) -> None:
    """Each gets its own results, once."""
    with ExitStack() as stack:
        (session,) = sessions(stack, [server.address], 1, polling_threads=2)

        def push(number: int) -> None:
            for partition in range(50):
                result = push_codes(session, 50 * number + partition, np.full(2000, number, np.uint8)).wait(30)
                assert (result.contributions == 1).all()
                assert len(set(result.aggregate[::2])) == 1

        in_parallel([lambda n=n: push(n) for n in range(4)])  # type: ignore[misc]
