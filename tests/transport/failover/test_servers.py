"""Several thc-ps that are killed, drained and started again under workers that go on: every sum and maximum is checked."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from failover_workers import Workers

from byteps_thc.errors import TransportError
from byteps_thc.tools.launch import ParameterServer
from byteps_thc.transport.servers import NetworkConfig


class Servers:
    """thc-ps processes at addresses that stay the same."""

    def __init__(self, count: int, stack: ExitStack) -> None:
        self._stack = stack
        self.running = [stack.enter_context(ParameterServer()) for _ in range(count)]
        self.addresses = tuple(server.address for server in self.running)

    def network(self, _worker: int) -> NetworkConfig:
        return NetworkConfig(list(self.addresses), run="test")

    def kill(self, number: int) -> None:
        process = self.running[number].process
        process.send_signal(signal.SIGKILL)
        process.wait()

    def restart(self, number: int) -> None:
        port = int(self.addresses[number].rpartition(":")[2])
        self.running[number] = self._stack.enter_context(ParameterServer(port=port))

    def all_but(self, number: int) -> tuple[str, ...]:
        return self.addresses[:number] + self.addresses[number + 1 :]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize(("count", "workers"), [(2, 2), (3, 3)])
def test_a_killed_server_is_left_out_and_comes_back(count: int, workers: int, stack: ExitStack) -> None:
    servers = Servers(count, stack)
    running = Workers(servers.network, workers)
    running.wait_for(20)
    servers.kill(1)
    running.wait_for_servers(servers.all_but(1))
    running.wait_for(20)
    assert running.moves() == [1] * workers
    servers.restart(1)
    running.wait_for_servers(servers.addresses)
    running.wait_for(20)
    running.stop()
    assert running.moves() == [2] * workers


def test_a_server_that_drains_is_left_before_it_ends(stack: ExitStack) -> None:
    servers = Servers(2, stack)
    running = Workers(servers.network, 2)
    running.wait_for(20)
    servers.running[0].process.terminate()
    running.wait_for_servers(servers.all_but(0))
    assert servers.running[0].process.wait(10) == 0
    running.wait_for(20)
    running.stop()
    assert running.moves() == [1, 1]


def test_no_server_is_left(stack: ExitStack) -> None:
    servers = Servers(2, stack)
    running = Workers(servers.network, 2, deadline_s=6.0)
    running.wait_for(5)
    began = time.monotonic()
    servers.kill(0)
    servers.kill(1)
    running.join()
    assert time.monotonic() - began < 20
    for error in running.errors:
        assert isinstance(error, TransportError)
        for address in servers.addresses:
            assert f"{address} is silent for rank 0, 1" in str(error)


def test_all_servers_are_restarted_at_once(stack: ExitStack) -> None:
    servers = Servers(2, stack)
    running = Workers(servers.network, 2)
    running.wait_for(10)
    for number in (0, 1):
        servers.kill(number)
    for number in (0, 1):
        servers.restart(number)
    running.wait_for(20)
    running.stop()
