"""Servers whose answers to questions are late or lost, while results arrive: nobody takes them for dead."""

import heapq
import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from failover_workers import Workers
from restarted_servers import RestartedServers

from byteps_thc._net.failover import watch
from byteps_thc._net.failover.watch import QUESTION_S, Presences, QuestionPace
from byteps_thc._net.servers import NetworkConfig
from thc_lab.udp_relay import UdpRelay
from thc_switch.wire import MessageType

TYPE_OFFSET = 1  # of a header
CONTROL = {MessageType.HELLO, MessageType.WELCOME, MessageType.CHALLENGE, MessageType.PROBE, MessageType.ALIVE}


class LateRelay(UdpRelay):
    """Delays datagrams of the types in `late` by delay_s, each way; loses them if that is None."""

    late: frozenset[int] = frozenset()
    delay_s: float | None = None

    def __init__(self, server: str) -> None:
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.touched = 0
        super().__init__(server)

    def _relay(self, is_up: bool, datagram: bytes, *way: object) -> None:
        if datagram[TYPE_OFFSET] not in self.late:
            return super()._relay(is_up, datagram, *way)  # type: ignore[arg-type]
        self.touched += 1
        if self.delay_s is not None:
            later = super()._relay
            entry = (time.monotonic() + self.delay_s, next(self._numbers), lambda: later(is_up, datagram, *way))  # type: ignore[arg-type]
            heapq.heappush(self._queue, entry)
        return None

    def _take_turn(self) -> None:
        super()._take_turn()
        while self._queue and self._queue[0][0] <= time.monotonic():
            heapq.heappop(self._queue)[2]()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("delay_s", [None, 0.4])
def test_a_server_is_there_while_its_results_arrive(
    delay_s: float | None, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "QUESTION_S", 0.04)  # three questions take .3 s
    servers = RestartedServers(2, stack)
    relay = stack.enter_context(LateRelay(servers.addresses[0]))
    addresses = [relay.address, servers.addresses[1]]
    running = Workers(lambda _: NetworkConfig(addresses, run="test"), 2)
    running.wait_for(5)
    relay.delay_s, relay.late = delay_s, frozenset(CONTROL)
    deadline = time.monotonic() + 60
    while relay.touched < 60:  # three questions have some fifteen
        running.wait_for(1)
        assert time.monotonic() < deadline
    assert running.moves() == [0, 0]
    servers.kill(0)  # without results it is gone
    running.wait_for_servers(addresses[1:])
    running.stop()


@pytest.mark.slow
def test_six_hundred_milliseconds_of_round_trip_are_no_silence(stack: ExitStack) -> None:
    relays = [stack.enter_context(LateRelay(address)) for address in RestartedServers(2, stack).addresses]
    running = Workers(
        lambda _: NetworkConfig([relay.address for relay in relays], run="test"),
        2,
        before_step=lambda _worker, step: time.sleep(6.0 if step == 8 else 0.0),  # nothing is heard meanwhile
    )
    running.wait_for(5)
    for relay in relays:
        relay.delay_s, relay.late = 0.3, frozenset(MessageType)
    running.wait_for(6, 60)
    assert running.moves() == [0, 0]
    running.stop()


def test_questions_last_longer_after_one_without_an_answer_and_where_results_take_long() -> None:
    presences = Presences(["a", "b"])
    lasted = []
    for answers in (["silent", "there"], ["silent", "there"], ["there", "there"], *[["there", "silent"]] * 3):
        lasted.append(presences.question_s(0.0))
        presences.take(answers)
    assert lasted == [QUESTION_S * factor for factor in (1, 2, 4, 1, 2, 4)]
    assert presences.gone([0, 1]) == [1]
    assert presences.question_s(0.0) == QUESTION_S, "one that is gone keeps nobody waiting"
    assert [presences.question_s(rtt) for rtt in (0.05, 0.2, 5.0)] == [QUESTION_S, 0.8, 2 * QUESTION_S]


def test_questions_take_a_fiftieth_of_what_the_ways_carry() -> None:
    slow, fast = QuestionPace(4), QuestionPace(4)
    asked = [second for second in range(1, 201) if slow.is_due(12_500 * second, float(second))]
    assert 10 < len(asked) <= 0.02 * 12_500 * 200 / (4 * 500) + 1
    assert all(fast.is_due(10**8 * second, float(second)) for second in range(1, 201))
    for pace, carried in ((slow, 12_500), (fast, 10**8)):
        assert all(pace.is_due(carried * 200, float(second)) for second in range(201, 401)), "an idle way has room"


def test_a_server_that_was_heard_is_not_gone_whatever_it_answers() -> None:
    presences = Presences(["a", "b"])
    for _ in range(10):
        presences.take(["silent", "silent"], heard=[0])
    assert presences.gone([0, 1]) == [1]
    assert presences.words(0.0) == ("there", "silent")
    presences.take(["leaving", "silent"], heard=[0])
    presences.take(["silent", "silent"], heard=[0])
    assert presences.leaving([0]) == [0], "what it said last"
