"""One rank's view of the servers, from questions that a thread asks all the time."""

from __future__ import annotations

import json
import logging
import math
import re
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Self

from byteps_thc._net.failover.stages import Missing
from byteps_thc._scheme.errors import ThcError

_logger = logging.getLogger("byteps_thc")

#: Between looks; every fourth look asks the servers, and every look while a server has not answered.
TICK_S = 0.25
_TICKS_PER_QUESTION = 4
#: Length of the first question; HELLO is repeated five times within it, and all answers count.
QUESTION_S = 0.5
#: Or so many round trips of results, as an answer may wait in a queue behind data: up to twice as long, because a slow
#: worker makes these long, too.
_ROUND_TRIPS = 4.0
#: A server is gone after so many unanswered questions, each twice as long as the one before.
_QUESTIONS = 3
#: Shortest exclusion of a lost server: doubled each time, so that an unstable server costs little.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 256.0
#: A rank's store may be gone because the training ends: a warning comes after this time.
_ENDING_S = 2.0


#: Questions' share of the carried bytes. Bytes of a HELLO and its answer with all headers, repeated once.
_QUESTION_SHARE, _QUESTION_BYTES = 0.02, 500
_LONGEST_PAUSE_OF_QUESTIONS_S = 15.0
_RATE_KEPT = 0.99


class QuestionPace:
    """Decides when to ask the servers: rarely on slow paths."""

    def __init__(self, servers: int) -> None:
        self._bytes = servers * _QUESTION_BYTES
        self._seen, self._rate, self._asked_s = (0, 0.0), 0.0, 0.0

    def is_due(self, carried_bytes: int, now_s: float) -> bool:
        """Return whether to ask now. carried_bytes: total of all paths."""
        (seen_bytes, seen_s), self._seen = self._seen, (carried_bytes, now_s)
        if carried_bytes > seen_bytes:  # an idle rank learns nothing
            self._rate = max((carried_bytes - seen_bytes) / max(now_s - seen_s, TICK_S), self._rate * _RATE_KEPT)
        pause_s = self._bytes / (_QUESTION_SHARE * self._rate) if self._rate > 0.0 else 0.0
        if now_s - self._asked_s < min(pause_s, _LONGEST_PAUSE_OF_QUESTIONS_S):
            return False
        self._asked_s = now_s
        return True


class Presences:
    """A rank's knowledge of the servers. Written by one thread; any may read."""

    def __init__(self, servers: Sequence[str]) -> None:
        self.servers = tuple(servers)
        self._last = [THERE] * len(servers)
        self._unanswered = [0] * len(servers)
        self._losses = [0] * len(servers)
        self._out_until = [0.0] * len(servers)
        self._blames = [0] * len(servers)
        self._blamed_until = [0.0] * len(servers)

    def take(self, answers: Sequence[str], heard: Collection[int] = ()) -> None:
        """Take in the result of ask_servers(). heard: servers that sent anything else meanwhile, such as results.

        These count as there, even if their answers got lost.
        """
        for number, answer in enumerate(answers):
            if answer == "silent" and number in heard:
                self._unanswered[number] = 0
            else:
                self._unanswered[number] = self._unanswered[number] + 1 if answer == "silent" else 0
                self._last[number] = answer

    def question_s(self, round_trip_s: float) -> float:
        """Return the length of the next question. round_trip_s: of results; 0: unknown."""
        doubts = max((count for count in self._unanswered if count < _QUESTIONS), default=0)
        return patience_s(QUESTION_S, round_trip_s) * 2.0**doubts

    def blame(self, numbers: Sequence[int]) -> None:
        """Note, at least once until moved(), that these answer but deliver nothing. They then do not count as THERE."""
        for number in numbers:
            self._blames[number] += self._blamed_until[number] < math.inf
            self._blamed_until[number] = math.inf

    def moved(self, used: Sequence[int], lost: Collection[int], refusing: Collection[int], now_s: float) -> None:
        """Note that ranks have moved to `used`, without `lost`, some of which have refused them.

        A server that refuses, or delivers nothing twice, stays out for the longest pause.
        """
        for number in lost:
            fresh = self._blamed_until[number] == math.inf
            self._blames[number] += self._blames[number] > 0 and number in refusing and not fresh
            pause_s = min(_FIRST_PAUSE_S * 2.0 ** self._losses[number], _LONGEST_PAUSE_S)
            if self._blames[number] > 1:
                pause_s = _LONGEST_PAUSE_S
            self._losses[number] += 1
            self._out_until[number] = now_s + pause_s
            if fresh:
                self._blamed_until[number] = now_s + pause_s
        for number in used:
            self._blamed_until[number] = 0.0

    def words(self, now_s: float) -> tuple[str, ...]:
        return tuple(
            UNDELIVERED if last == THERE and now_s < self._blamed_until[number] else last
            for number, last in enumerate(self._last)
        )

    def doubtful(self) -> bool:
        return any(0 < unanswered < _QUESTIONS for unanswered in self._unanswered)

    def gone(self, used: Sequence[int]) -> list[int]:
        return [number for number in used if self._unanswered[number] >= _QUESTIONS]

    def leaving(self, used: Sequence[int]) -> list[int]:
        return [number for number in used if self._last[number] == "leaving"]

    def back(self, used: Sequence[int], now_s: float) -> list[int]:
        """Return the unused servers that may be used again."""
        return [
            number
            for number, last in enumerate(self._last)
            if number not in used and last == THERE and now_s >= self._out_until[number]
        ]


class Watch:
    """A thread that asks, and looks after each question and between them, until it is closed.

    ask: asks the servers whether they are there. look: called a few times a second. An error of either ends the thread,
    because a rank whose store is gone cannot agree with others on anything; lost is called then.
    """

    def __init__(
        self,
        presences: Presences,
        ask: Callable[[], None],
        look: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self._presences, self._ask, self._look, self._lost = presences, ask, look, lost
        self._closing = threading.Event()
        # A daemon: it must not keep a process that has forgotten it from ending.
        self._thread = threading.Thread(target=self._run, name="thc-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, unless it is the caller. May be called again."""
        self._closing.set()
        if self._thread is not threading.current_thread():
            self._thread.join(2 * QUESTION_S + 1.0)

    def _run(self) -> None:
        tick = 0
        try:
            while not self._closing.wait(TICK_S):
                tick += 1
                if tick % _TICKS_PER_QUESTION == 0 or self._presences.doubtful():
                    self._ask()
                self._look()
        except ThcError as error:
            if self._closing.wait(_ENDING_S):
                return
            self._lost()
            _logger.warning(
                "this rank can no longer fail over: the training continues, but ends if a server goes. %s", error
            )


def patience_s(least_s: float, round_trip_s: float) -> float:
    """Return the time to wait for an answer if results take that round trip."""
    return min(max(least_s, _ROUND_TRIPS * round_trip_s), 2.0 * least_s)


_NAMED = re.compile(r"\bserver (\d+\.\d+\.\d+\.\d+|\[[^\]]+\]):(\d+)")
#: ask_servers()'s word for a server that accepts workers.
THERE = "there"
#: A rank's word for a server that is there, but does not deliver this rank's results.
UNDELIVERED = "answering but delivering nothing"


@dataclass(frozen=True)
class Statement:
    """A rank's statement after leaving its session. presences: of each configured server, as from ask_servers().

    tired: it has tried for its whole deadline. fruitless: moves have brought no result for as long.
    """

    missing: Missing
    presences: tuple[str, ...]
    tired: bool
    fruitless: bool = False

    def as_text(self) -> str:
        return json.dumps([self.missing.norms, self.missing.codes, self.presences, self.tired, self.fruitless])

    @classmethod
    def from_text(cls, text: str) -> Self:
        norms, codes, presences, tired, fruitless = json.loads(text)
        return cls(Missing(tuple(norms), tuple(codes)), tuple(presences), bool(tired), bool(fruitless))


@dataclass(frozen=True)
class Plan:
    """The plan of a move, the same on all ranks.

    servers: numbers of servers that all reach. undelivered: servers that deliver nothing to a rank. missing: stages
    that any rank lacks.
    """

    servers: tuple[int, ...]
    undelivered: tuple[int, ...]
    missing: Missing
    given_up: bool
    fruitless: bool = False

    @classmethod
    def of(cls, everyone: Sequence[Statement], refusing: Collection[int] = ()) -> Self:
        """Return the plan for all ranks' statements. refusing: servers to avoid if another is there."""
        by_server = [*zip(*(each.presences for each in everyone), strict=True)]
        answering = {n: seen for n, seen in enumerate(by_server) if {*seen} <= {THERE, UNDELIVERED}}
        there = tuple(number for number, seen in answering.items() if UNDELIVERED not in seen)
        # An undelivering server is better than none. With two, ranks could leave them in turns for ever.
        return cls(
            tuple(number for number in there if number not in refusing) or there or tuple(answering)[:1],
            tuple(number for number, seen in enumerate(by_server) if UNDELIVERED in seen),
            Missing.of_any(each.missing for each in everyone),
            any(each.tired for each in everyone),
            any(each.fruitless for each in everyone),
        )


def why_none(servers: Sequence[str], everyone: Sequence[Statement]) -> str:
    """Describe the servers that not all ranks reach, with the ranks."""
    words = []
    for number, server in enumerate(servers):
        ranks: dict[str, list[int]] = {}
        for rank, each in enumerate(everyone):
            ranks.setdefault(each.presences[number], []).append(rank)
        ranks.pop(THERE, None)
        words += [f"{server} is {what} for rank {', '.join(map(str, who))}" for what, who in sorted(ranks.items())]
    return "; ".join(words)


def named_in(error: str, addresses: Sequence[str]) -> int | None:
    """Return the server, of these addresses (IP:PORT), in an error of joining. Shards' ports follow the server's."""
    match = _NAMED.search(error)
    if match is None:
        return None
    ports = {}
    for number, address in enumerate(addresses):
        ip, _, port = address.rpartition(":")
        if ip == match[1] and int(port) <= int(match[2]):
            ports[number] = int(port)
    return max(ports, key=ports.__getitem__, default=None)


#: Seconds, and a port, as in Session.unanswered().
Unanswered = tuple[float, int]

#: A rank leaves a server after so long without a result or a notice for a packet.
UNDELIVERED_S = 10.0
#: A server delivers if no packet has waited for an answer for longer than this share of UNDELIVERED_S.
_DELIVERING = 0.1


def undelivered(packets: Sequence[Unanswered]) -> list[int]:
    """Return places of servers that deliver nothing, if another one delivers.

    packets: each server's longest unanswered packet. A server that waits for a slow rank sends notices, and is not
    among the results.
    """
    others_deliver = any(seconds < _DELIVERING * UNDELIVERED_S for seconds, _ in packets)
    return [place for place, (seconds, _) in enumerate(packets) if others_deliver and seconds >= UNDELIVERED_S]


def describe(server: str, packet: Unanswered) -> str:
    seconds, port = packet
    return (
        f"{server} answers, but has delivered nothing from port {port} for {seconds:.1f} s: check "
        "firewalls for UDP on all ports of the server, the MTU of the path, and that no two addresses are one thc-ps"
    )
