"""Which servers are there, as one rank sees it: asked all the time, by a thread of its own."""

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

#: From one look to the next; every fourth one asks the servers, and each one while a server has not answered.
TICK_S = 0.25
_TICKS_PER_QUESTION = 4
#: How long the first question lasts; meanwhile HELLO is repeated five times, and all answers count.
QUESTION_S = 0.5
#: Or so many round trips of results, as an answer may wait behind data in a queue on its way: up to twice as long,
#: because a slow worker makes these long, too.
_ROUND_TRIPS = 4.0
#: So many questions in a row without an answer, each twice as long as the one before, and a server is gone.
_QUESTIONS = 3
#: How long a server that was lost stays out at least: doubled each time, so that one that comes and goes costs little.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 256.0
#: A rank's store may be gone because the training ends: so long until that is worth a warning.
_ENDING_S = 2.0


#: Share of the carried bytes for questions. Bytes of a HELLO and its answer with all headers, repeated once.
_QUESTION_SHARE, _QUESTION_BYTES = 0.02, 500
_LONGEST_PAUSE_OF_QUESTIONS_S = 15.0
#: Decay of the known rate from one look to the next.
_RATE_KEPT = 0.99


class QuestionPace:
    """When to ask the servers: rarely on slow paths."""

    def __init__(self, servers: int) -> None:
        self._bytes = servers * _QUESTION_BYTES
        self._seen, self._rate, self._asked_s = (0, 0.0), 0.0, 0.0

    def is_due(self, carried_bytes: int, now_s: float) -> bool:
        """Return whether to ask now. carried_bytes: by all ways until now."""
        (seen_bytes, seen_s), self._seen = self._seen, (carried_bytes, now_s)
        if carried_bytes > seen_bytes:  # an idle rank learns nothing
            self._rate = max((carried_bytes - seen_bytes) / max(now_s - seen_s, TICK_S), self._rate * _RATE_KEPT)
        pause_s = self._bytes / (_QUESTION_SHARE * self._rate) if self._rate > 0.0 else 0.0
        if now_s - self._asked_s < min(pause_s, _LONGEST_PAUSE_OF_QUESTIONS_S):
            return False
        self._asked_s = now_s
        return True


class Presences:
    """What a rank knows of the servers. Written by one thread; any may read."""

    def __init__(self, servers: Sequence[str]) -> None:
        self.servers = tuple(servers)
        self._last = [THERE] * len(servers)
        self._unanswered = [0] * len(servers)
        self._losses = [0] * len(servers)
        self._out_until = [0.0] * len(servers)
        self._blames = [0] * len(servers)
        self._blamed_until = [0.0] * len(servers)

    def take(self, answers: Sequence[str], heard: Collection[int] = ()) -> None:
        """Take in what ask_servers() has returned. heard: servers of which anything else arrived meanwhile, as results.

        These are there, whatever keeps their answers.
        """
        for number, answer in enumerate(answers):
            if answer == "silent" and number in heard:
                self._unanswered[number] = 0
            else:
                self._unanswered[number] = self._unanswered[number] + 1 if answer == "silent" else 0
                self._last[number] = answer

    def question_s(self, round_trip_s: float) -> float:
        """Return how long the next question may take. round_trip_s: of results; 0: unknown."""
        doubts = max((count for count in self._unanswered if count < _QUESTIONS), default=0)
        return patience_s(QUESTION_S, round_trip_s) * 2.0**doubts

    def blame(self, numbers: Sequence[int]) -> None:
        """Take in, once or more often until moved(), that these answer but deliver nothing. They are not THERE then."""
        for number in numbers:
            self._blames[number] += self._blamed_until[number] < math.inf
            self._blamed_until[number] = math.inf

    def moved(self, used: Sequence[int], lost: Collection[int], refusing: Collection[int], now_s: float) -> None:
        """Take in that ranks have moved to `used`, without `lost`, some of which have refused them.

        A server that delivers nothing, and then again, or refuses, stays out for the longest pause.
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
        """Return what this rank says of each server to the others."""
        return tuple(
            UNDELIVERED if last == THERE and now_s < self._blamed_until[number] else last
            for number, last in enumerate(self._last)
        )

    def doubtful(self) -> bool:
        """Whether a server has not answered, and may be gone or not."""
        return any(0 < unanswered < _QUESTIONS for unanswered in self._unanswered)

    def gone(self, used: Sequence[int]) -> list[int]:
        """Return those that do not answer any more."""
        return [number for number in used if self._unanswered[number] >= _QUESTIONS]

    def leaving(self, used: Sequence[int]) -> list[int]:
        """Return those that have said that they drain."""
        return [number for number in used if self._last[number] == "leaving"]

    def back(self, used: Sequence[int], now_s: float) -> list[int]:
        """Return those that are not used, but may be again."""
        return [
            number
            for number, last in enumerate(self._last)
            if number not in used and last == THERE and now_s >= self._out_until[number]
        ]


class Watch:
    """Asks, and looks after each question and between them, until it is closed.

    ask: asks the servers whether they are there. look: what to do a few times a second. An error of either ends
    it: a rank whose store is gone cannot agree with others on anything. lost: called then.
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
        # A daemon: it must not keep a process from ending that has forgotten it.
        self._thread = threading.Thread(target=self._run, name="thc-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, unless it is what calls. May be called again."""
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
    """Return how long to wait for an answer where results take that round trip."""
    return min(max(least_s, _ROUND_TRIPS * round_trip_s), 2.0 * least_s)


_NAMED = re.compile(r"\bserver (\d+\.\d+\.\d+\.\d+|\[[^\]]+\]):(\d+)")
#: What ask_servers() says of a server that workers may come to.
THERE = "there"
#: What a rank says of a server that is there, but does not deliver what this rank needs.
UNDELIVERED = "answering but delivering nothing"


@dataclass(frozen=True)
class Statement:
    """What a rank says when it has left its session. presences: of each configured server, as ask_servers() has them.

    tired: it has tried for as long as it waits for anything. fruitless: moves have brought no result for as long.
    """

    missing: Missing
    presences: tuple[str, ...]
    tired: bool
    fruitless: bool = False

    def as_text(self) -> str:
        """Return it as from_text() takes it."""
        return json.dumps([self.missing.norms, self.missing.codes, self.presences, self.tired, self.fruitless])

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return what as_text() was called on."""
        norms, codes, presences, tired, fruitless = json.loads(text)
        return cls(Missing(tuple(norms), tuple(codes)), tuple(presences), bool(tired), bool(fruitless))


@dataclass(frozen=True)
class Plan:
    """What all ranks do, the same on all of them.

    servers: numbers of those that all reach. undelivered: of those that deliver nothing to a rank. missing: what any
    rank lacks.
    """

    servers: tuple[int, ...]
    undelivered: tuple[int, ...]
    missing: Missing
    given_up: bool
    fruitless: bool = False

    @classmethod
    def of(cls, everyone: Sequence[Statement], refusing: Collection[int] = ()) -> Self:
        """Return what follows from what all ranks have said. refusing: servers not to use if another is there."""
        by_server = [*zip(*(each.presences for each in everyone), strict=True)]
        answering = {n: seen for n, seen in enumerate(by_server) if {*seen} <= {THERE, UNDELIVERED}}
        there = tuple(number for number, seen in answering.items() if UNDELIVERED not in seen)
        # One that delivers nothing is better than none. With two, ranks could leave them in turns for ever.
        return cls(
            tuple(number for number in there if number not in refusing) or there or tuple(answering)[:1],
            tuple(number for number, seen in enumerate(by_server) if UNDELIVERED in seen),
            Missing.of_any(each.missing for each in everyone),
            any(each.tired for each in everyone),
            any(each.fruitless for each in everyone),
        )


def why_none(servers: Sequence[str], everyone: Sequence[Statement]) -> str:
    """Return which server is what for which ranks, of servers that not all ranks reach."""
    words = []
    for number, server in enumerate(servers):
        ranks: dict[str, list[int]] = {}
        for rank, each in enumerate(everyone):
            ranks.setdefault(each.presences[number], []).append(rank)
        ranks.pop(THERE, None)
        words += [f"{server} is {what} for rank {', '.join(map(str, who))}" for what, who in sorted(ranks.items())]
    return "; ".join(words)


def named_in(error: str, addresses: Sequence[str]) -> int | None:
    """Return which server, of those at these addresses (IP:PORT), an error of joining is about. A shard's port follows
    that of its server."""
    match = _NAMED.search(error)
    if match is None:
        return None
    ports = {}
    for number, address in enumerate(addresses):
        ip, _, port = address.rpartition(":")
        if ip == match[1] and int(port) <= int(match[2]):
            ports[number] = int(port)
    return max(ports, key=ports.__getitem__, default=None)


#: Seconds, and a port, as Session.unanswered() has them.
Unanswered = tuple[float, int]

#: A rank leaves a server that has answered a packet neither with a result nor with a notice for so long.
UNDELIVERED_S = 10.0
#: A server delivers if no packet has waited for an answer for longer than this share of UNDELIVERED_S.
_DELIVERING = 0.1


def undelivered(packets: Sequence[Unanswered]) -> list[int]:
    """Return places of servers that deliver nothing, if another one delivers.

    packets: what each server of a session has not answered for longest. A server that waits for a slow rank sends
    notices, and is none of these.
    """
    others_deliver = any(seconds < _DELIVERING * UNDELIVERED_S for seconds, _ in packets)
    return [place for place, (seconds, _) in enumerate(packets) if others_deliver and seconds >= UNDELIVERED_S]


def describe(server: str, packet: Unanswered) -> str:
    """Return why ranks leave a server, and what to check."""
    seconds, port = packet
    return (
        f"{server} answers, but has delivered nothing from port {port} for {seconds:.1f} s: check "
        "firewalls for UDP on all ports of the server, the MTU of the path, and that no two addresses are one thc-ps"
    )
