"""Servers that answer HELLO and deliver nothing: large results are lost, or the port of one of a server's threads."""

import math
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from failover_workers import Workers
from restarted_servers import RestartedServers
from torch.distributed import TCPStore
from worker_relay import WorkerRelay

from byteps_thc._base.errors import DeadlineError, TransportError
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.failover import agreement, watch
from byteps_thc._net.failover.plan import THERE, UNDELIVERED, Plan, Statement
from byteps_thc._net.failover.watch import Presences, undelivered
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._net.session import Timeouts

NARROW_BYTES = 600  # less than a full packet of sums, more than one of codes


@pytest.fixture
def impatient(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001  # extends the common one
    """A server that delivers nothing is left sooner, too."""
    monkeypatch.setattr(watch, "UNDELIVERED_S", 1.0)


class NarrowRelay(WorkerRelay):
    """Loses lost_worker's packets, and those above most_bytes on the way down, as a small MTU does; 0: both ways."""

    most_bytes = 65536

    def _relay(self, is_up: bool, datagram: bytes, *way: object) -> None:
        if len(datagram) <= self.most_bytes or (is_up and self.most_bytes):
            super()._relay(is_up, datagram, *way)


def start(servers: list[str], **options: object) -> Workers:
    return Workers(lambda _: NetworkConfig(servers, run="test"), 2, **options)  # type: ignore[arg-type]


def relays_of_threads(server: ParameterServer, stack: ExitStack) -> list[NarrowRelay]:
    """One for each of the server's two ports, at consecutive ports, too."""
    ip, _, port = server.address.rpartition(":")
    while True:
        first = NarrowRelay(server.address)
        try:
            second = NarrowRelay(f"{ip}:{int(port) + 1}", port=int(first.address.rpartition(":")[2]) + 1)
        except OSError:
            first.close()
            continue
        return [stack.enter_context(first), stack.enter_context(second)]


@pytest.mark.usefixtures("impatient")
def test_ranks_leave_a_server_whose_results_are_lost(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    servers = RestartedServers(2, stack)
    relay = stack.enter_context(NarrowRelay(servers.addresses[0]))
    running = start([relay.address, servers.addresses[1]])
    running.wait_for(10)
    relay.most_bytes = NARROW_BYTES
    running.wait_for_servers(servers.addresses[1:])
    deadline = time.monotonic() + 30
    while running.moves() != [3, 3]:  # away, back again as it answers, and away
        assert time.monotonic() < deadline, running.moves()
        time.sleep(0.05)
    steps = running.steps[0]
    time.sleep(2.0)
    assert running.steps[0] > steps
    running.stop()
    assert running.moves() == [3, 3], "the second time it stays out for the longest pause"
    assert re.search(
        rf"{relay.address} answers, but has delivered nothing from port \d+ for .* s: check firewalls .* MTU "
        ".* no two addresses are one",
        caplog.text,
    )
    assert re.search(r"messages sent again: \d+; the move took \d+\.\d s", caplog.text)


@pytest.mark.usefixtures("impatient")
def test_ranks_leave_a_server_one_of_whose_ports_is_filtered(stack: ExitStack) -> None:
    first, second = relays_of_threads(stack.enter_context(ParameterServer(["--threads", "2"])), stack)
    other = RestartedServers(1, stack).addresses
    running = start([*other, first.address])
    running.wait_for(5)
    second.most_bytes = 0
    running.wait_for_servers(other)
    running.wait_for(5)
    second.most_bytes = 65536
    running.stop()


@pytest.mark.usefixtures("impatient")
def test_a_slow_rank_is_no_servers_fault(stack: ExitStack) -> None:
    """All of the other rank's packets wait at one server, while the other server has nothing to do."""

    def compute(worker: int, step: int) -> None:
        time.sleep(2.2 if worker == 1 and step == 3 else 0.0)

    running = start(RestartedServers(2, stack).addresses, pieces=1, before_step=compute)
    running.wait_for(10)
    running.stop()
    assert running.moves() == [0, 0]


STORE_PROGRAM = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("signal_of_host", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_lost_store_is_a_warning_and_in_the_statistics(
    signal_of_host: int, stack: ExitStack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process has ended, or answers no more, as one whose host is unreachable."""
    monkeypatch.setattr(agreement, "STORE_S", 1.0)
    monkeypatch.setattr(watch, "_ENDING_S", 0.1)
    host = stack.enter_context(
        subprocess.Popen([sys.executable, "-c", STORE_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    )
    stack.callback(host.kill)
    assert host.stdout is not None
    store = TCPStore("127.0.0.1", int(host.stdout.readline()), is_master=False)
    running = start(RestartedServers(2, stack).addresses, store=store)
    running.wait_for(5)
    host.send_signal(signal_of_host)
    deadline = time.monotonic() + 30
    while [recorder.snapshot().failover_losses for recorder in running.recorders] != [1, 1]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.wait_for(5)  # it does not need the store
    running.stop()
    said = [record for record in caplog.records if "can no longer fail over" in record.message]
    assert [record.levelname for record in said] == ["WARNING", "WARNING"]
    assert "the process group's store does not answer" in said[0].message


@pytest.mark.slow
def test_a_server_that_one_rank_does_not_reach_at_first_is_named_by_all(stack: ExitStack) -> None:
    servers = RestartedServers(2, stack)
    relay = stack.enter_context(NarrowRelay(servers.addresses[1]))
    relay.most_bytes = 0
    timeouts = Timeouts(connect_s=2.0)
    ways = [servers.addresses, [servers.addresses[0], relay.address]]
    running = Workers(lambda worker: NetworkConfig(ways[worker], run="test", timeouts=timeouts), 2)
    running.join()
    first, second = running.errors
    assert isinstance(first, TransportError)
    assert isinstance(second, DeadlineError)
    for error in (first, second):
        assert f"server {relay.address} did not answer HELLO" in str(error)


@pytest.mark.slow
def test_ranks_that_give_up_name_the_server_and_not_the_rank_that_waits_for_it(stack: ExitStack) -> None:
    """An attempt takes five seconds on one rank and none on the other, and ends after the deadline."""
    first, second = relays_of_threads(stack.enter_context(ParameterServer(["--threads", "2"])), stack)
    others = RestartedServers(1, stack)
    running = start([*others.addresses, first.address], deadline_s=7.0)
    running.wait_for(5)
    second.lost_worker = 1
    others.kill(0)
    running.join()
    for error in running.errors:
        assert isinstance(error, TransportError), error
        assert f"server {second.address} did not answer HELLO" in str(error)


def test_who_delivers_nothing() -> None:
    assert undelivered([(11.0, 1), (0.0, 2)]) == [0]
    assert undelivered([(9.0, 1), (0.0, 2)]) == []
    assert undelivered([(11.0, 1), (11.0, 2)]) == []
    assert undelivered([(11.0, 1), (8.0, 2)]) == [], "nothing is delivered anywhere, and it began at almost one moment"
    assert undelivered([(11.0, 1), (12.0, 2), (0.5, 3)]) == [0, 1]
    assert undelivered([(60.0, 1)]) == []


def test_a_server_that_delivers_nothing_is_used_only_when_no_other_is_there() -> None:
    def plan(*presences: tuple[str, ...]) -> tuple[int, ...]:
        return Plan.of([Statement((), each, tired=False) for each in presences]).servers

    assert plan((THERE, UNDELIVERED), (THERE, THERE)) == (0,)
    assert plan(("silent", UNDELIVERED), (THERE, THERE)) == (1,)
    assert plan((UNDELIVERED, THERE), (THERE, UNDELIVERED)) == (0,), "not both, which ranks would leave in turns"


def test_pauses_of_a_server_that_delivers_nothing() -> None:
    presences = Presences(["a", "b"])
    assert presences.words(0.0) == (THERE, THERE)
    presences.blame([0])
    assert presences.words(1e9) == (UNDELIVERED, THERE), "as long as ranks are on their way"
    presences.moved([1], [0], [], 100.0)
    assert presences.words(101.0) == (UNDELIVERED, THERE)
    assert presences.words(103.0) == (THERE, THERE)
    assert (presences.back([1], 101.0), presences.back([1], 103.0)) == ([], [0])
    presences.moved([0, 1], [], [], 103.0)
    presences.blame([0])
    presences.moved([1], [0], [], 120.0)
    assert (presences.back([1], 370.0), presences.back([1], 377.0)) == ([], [0])


@pytest.mark.parametrize(("blamed", "pause_s"), [(False, 4.0), (True, 256.0)])
def test_a_refusal_after_it_delivered_nothing_is_the_second_attempt(blamed: bool, pause_s: float) -> None:
    presences = Presences(["a", "b"])
    if blamed:
        presences.blame([0])
    presences.moved([1], [0], [], 0.0)
    presences.moved([1], [0], [0], 10.0)
    assert not presences.back([1], math.nextafter(10.0 + pause_s, 0.0))
    assert presences.back([1], 10.0 + pause_s) == [0]
