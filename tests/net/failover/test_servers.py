"""Several thc-ps that are killed, drained and restarted under running workers: all sums and maxima are checked."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event

import pytest
from e2e.udp_switch import HOST, SERVER, free_udp_ports, job_of, udp_switch
from e2e.workers import JOB
from failover_workers import Workers
from joined_sessions import check_sums
from restarted_servers import RestartedServers
from torch.distributed import HashStore
from worker_relay import WorkerRelay

from byteps_thc._base.errors import ConfigurationError, DeadlineError, TransportError
from byteps_thc._net.failover.agreement import Agreement
from byteps_thc._net.failover.opening import open_failover_session
from byteps_thc._net.failover.session import FailoverSession
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._net.session import DpdkConfig, Session, UdpConfig
from byteps_thc._scheme.adding.server_codes import ServerCodes


def start(servers: list[str], workers: int = 2, **options: object) -> Workers:
    return Workers(lambda _: NetworkConfig(servers, run="test"), workers, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("impatient")
def test_a_killed_server_is_left_out_and_comes_back(stack: ExitStack) -> None:
    servers = RestartedServers(2, stack)
    running = start(servers.addresses)
    running.wait_for(10)
    servers.kill(1)
    running.wait_for_servers(servers.all_but(1))
    running.wait_for(10)
    assert running.moves() == [1, 1]
    servers.restart(1)
    running.wait_for_servers(servers.addresses)
    running.wait_for(10)
    running.stop()
    assert running.moves() == [2, 2]


@pytest.mark.usefixtures("impatient")
def test_a_server_that_drains_is_left_before_it_ends(stack: ExitStack) -> None:
    servers = RestartedServers(2, stack)
    running = start(servers.addresses)
    running.wait_for(10)
    servers.drain(0)
    running.wait_for_servers(servers.all_but(0))
    running.wait_for(10)
    running.stop()
    assert running.moves() == [1, 1]


@pytest.mark.slow
def test_a_server_that_drains_while_nobody_sends_tells_workers_all_the_same(stack: ExitStack) -> None:
    servers = RestartedServers(2, stack)
    pause_s = [0.0]
    running = start(servers.addresses, before_step=lambda _worker, _step: time.sleep(pause_s[0]))
    running.wait_for(5)
    pause_s[0] = 3.0  # a step that computes for long
    time.sleep(1.0)
    servers.drain(1)
    began = time.monotonic()
    pause_s[0] = 0.0
    running.wait_for_servers(servers.all_but(1))
    assert time.monotonic() - began < 6
    running.stop()
    assert running.moves() == [1, 1]


@pytest.mark.slow
def test_a_worker_that_does_not_reach_a_server_takes_all_away_from_it(stack: ExitStack) -> None:
    servers = RestartedServers(2, stack)
    relay = stack.enter_context(WorkerRelay(servers.addresses[1]))
    addresses = [servers.addresses[0], relay.address]
    running = start(addresses, 3)
    running.wait_for(10)
    relay.lost_worker = 2
    running.wait_for_servers(addresses[:1])
    running.wait_for(10)
    time.sleep(4.0)  # two workers reach it all the time
    assert running.moves() == [1, 1, 1]
    relay.lost_worker = -1
    running.wait_for_servers(addresses)
    running.wait_for(10)
    running.stop()


@pytest.mark.slow
def test_without_any_server_all_say_which(stack: ExitStack) -> None:
    servers = RestartedServers(2, stack)
    running = start(servers.addresses, deadline_s=6.0)
    running.wait_for(5)
    began = time.monotonic()
    for number in range(2):
        servers.kill(number)
    running.join()
    assert time.monotonic() - began < 20
    for error in running.errors:
        assert isinstance(error, TransportError)
        for address in servers.addresses:
            assert f"{address} is silent for rank 0, 1" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_all_servers_are_killed_and_restarted_at_once(count: int, stack: ExitStack) -> None:
    servers = RestartedServers(count, stack)
    running = start(servers.addresses)
    running.wait_for(10)
    for number in range(count):
        servers.kill(number)
    for number in range(count):
        servers.restart(number)
    running.wait_for(20)
    running.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_there_again_but_refuses_is_left_out(
    stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    servers = RestartedServers(2, stack)
    running = start(servers.addresses)
    running.wait_for(5)
    servers.kill(0)
    running.wait_for_servers(servers.all_but(0))
    servers.restart(0, "--max-memory", "8KiB")
    deadline = time.monotonic() + 60
    while caplog.text.count("could not go on with") < 2 or "thc-ps --max-jobs" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    running.wait_for(20)
    assert running.sessions[0].servers == tuple(servers.all_but(0))
    servers.kill(0)
    servers.restart(0)
    running.wait_for_servers(servers.addresses)  # now it takes them
    running.wait_for(20)
    running.stop()


def test_who_goes_on() -> None:
    two = ["127.0.0.1:1", "127.0.0.1:2"]
    assert NetworkConfig(two).goes_on(4)
    assert not NetworkConfig(two).goes_on(1)
    assert not NetworkConfig(two[:1]).goes_on(4)
    assert NetworkConfig(two[:1], failover=True).goes_on(4)
    assert not NetworkConfig(two, failover=False).goes_on(4)
    assert not NetworkConfig(two, quorum=3).goes_on(4)
    assert not NetworkConfig(two, loss_tolerant=True).goes_on(4)
    assert not NetworkConfig(two, backend=DpdkConfig("10.0.0.1")).goes_on(4)
    for refused in ({"quorum": 3}, {"loss_tolerant": True}, {"backend": DpdkConfig("10.0.0.1")}):
        with pytest.raises(ConfigurationError, match="failover=True does not work with"):
            NetworkConfig(two, failover=True, **refused).goes_on(4)


def test_the_rank_that_does_not_answer_is_named() -> None:
    store = HashStore()
    first, second, third = (Agreement(store, rank, 3, Event()) for rank in range(3))
    third.tell("servers", "c")
    with pytest.raises(DeadlineError, match=r"^rank 1 of the group does not answer: read its log, it may have ended"):
        first.exchange("servers", "a", time.monotonic() + 0.1)
    second.tell("servers", "b")
    assert first.exchange("servers", "a", time.monotonic() + 20) == ["a", "b", "c"]


@pytest.mark.parametrize("failover", [None, True])
def test_a_switch_has_a_session_that_ends_with_it(failover: bool | None) -> None:
    """It has the addresses of its workers in its tables; that nobody moves is found by all ranks."""
    ports, store = free_udp_ports(2), HashStore()

    def opened(worker: int) -> FailoverSession | Session:
        local = UdpConfig(local=f"{HOST}:{ports[worker]}")
        network = NetworkConfig(servers=[SERVER], job=JOB, backend=local, run="1", failover=failover)
        return open_failover_session(network, store, worker, 2, 30.0, moved=lambda: None, lost=lambda: None)

    with udp_switch("v1model", job_of(JOB, ports, ServerCodes())), ThreadPoolExecutor(2) as threads:
        opening = [threads.submit(opened, worker) for worker in range(2)]
        if failover:
            for each in opening:
                with pytest.raises(ConfigurationError, match="a server is a switch"):
                    each.result(60)
            return
        sessions = [each.result(60) for each in opening]
        assert all(isinstance(session, Session) for session in sessions)
        check_sums(sessions, ServerCodes(), [1024 + 300], steps=1)
        for session in sessions:
            session.close()
