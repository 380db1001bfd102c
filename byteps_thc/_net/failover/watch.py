"""One rank's view of the servers, from questions that a thread asks all the time."""

import logging
import math
import threading
from collections.abc import Callable, Collection, Sequence

from byteps_thc._base.errors import ThcError
from byteps_thc._net.failover.plan import THERE, UNDELIVERED

_logger = logging.getLogger("byteps_thc")

#: Between looks; every fourth look asks the servers, and every look while a server has not answered.
TICK_S = 0.25
_TICKS_PER_QUESTION = 4
#: Length of the first question; HELLO is repeated five times within it, and all answers count.
QUESTION_S = 0.5
#: Or so many round trips of results, up to twice as long: an answer may wait in a queue behind data.
_ROUND_TRIPS = 4.0
#: A server is gone after so many unanswered questions, each twice as long as the one before.
_QUESTIONS = 3
#: Shortest exclusion of a lost server: doubled each time, so that an unstable server costs little.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 256.0
#: A rank's store may be gone because the training ends: a warning comes after this time.
_ENDING_S = 2.0

#: Questions' share of the carried bytes. Bytes of a HELLO and its answer with all headers, repeated once.
_QUESTION_SHARE, _QUESTION_BYTES = 0.02, 500
_LONGEST_PAUSE_OF_QUESTIONS_S, _IDLE_PAUSE_S = 15.0, 0.5
_RATE_KEPT = 0.99


class QuestionPace:
    """Decides when to ask the servers: rarely on slow paths."""

    def __init__(self, servers: int) -> None:
        self._bytes = servers * _QUESTION_BYTES
        self._seen, self._rate, self._asked_s = (0, 0.0), 0.0, 0.0

    def is_due(self, carried_bytes: int, now_s: float) -> bool:
        """Return whether to ask now. carried_bytes: total of all paths."""
        (seen_bytes, seen_s), self._seen = self._seen, (carried_bytes, now_s)
        if carried_bytes > seen_bytes:
            self._rate = max((carried_bytes - seen_bytes) / max(now_s - seen_s, TICK_S), self._rate * _RATE_KEPT)
            pause_s = self._bytes / (_QUESTION_SHARE * self._rate)
        else:  # an idle path has room, and a server without packets ends after 1.7 s
            pause_s = _IDLE_PAUSE_S
        if now_s - self._asked_s < min(pause_s, _LONGEST_PAUSE_OF_QUESTIONS_S):
            return False
        self._asked_s = now_s
        return True


class Presences:
    """A rank's knowledge of the servers. Written by one thread; any may read."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._last, self._unanswered = [THERE] * len(servers), [0] * len(servers)
        self._losses, self._out_until = [0] * len(servers), [0.0] * len(servers)
        self._blames, self._blamed_until = [0] * len(servers), [0.0] * len(servers)

    def take(self, answers: Sequence[str], heard: Collection[int] = ()) -> None:
        """Take in the result of ask_servers(). heard: servers that sent anything else meanwhile, and count as there."""
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
        """Note that ranks have moved to `used`, without `lost`. refusing: servers that refused them."""
        for number in lost:
            fresh = self._blamed_until[number] == math.inf
            self._blames[number] += self._blames[number] > 0 and number in refusing and not fresh
            pause_s = min(_FIRST_PAUSE_S * 2.0 ** self._losses[number], _LONGEST_PAUSE_S)
            if self._blames[number] > 1:
                pause_s = _LONGEST_PAUSE_S  # the server refuses, or has delivered nothing twice
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
    """A thread that calls `ask`, which probes the servers, and `look`, a few times a second, until it is closed.

    lost: called if either raises an error, which ends the thread: a rank without its store cannot agree on anything.
    """

    def __init__(
        self, presences: Presences, ask: Callable[[], None], look: Callable[[], None], lost: Callable[[], None]
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


#: Seconds, and a port, as in Session.unanswered().
Unanswered = tuple[float, int]

#: A rank leaves a server after so long without a result or a notice for a packet.
UNDELIVERED_S = 10.0
#: A server delivers if no packet has waited for an answer for longer than this share of UNDELIVERED_S.
_DELIVERING = 0.1


def undelivered(packets: Sequence[Unanswered]) -> list[int]:
    """Return places of servers that deliver nothing, if another server delivers. Servers that wait send notices.

    packets: each server's longest unanswered packet.
    """
    others_deliver = any(seconds < _DELIVERING * UNDELIVERED_S for seconds, _ in packets)
    return [place for place, (seconds, _) in enumerate(packets) if others_deliver and seconds >= UNDELIVERED_S]


def describe(server: str, packet: Unanswered) -> str:
    seconds, port = packet
    return (
        f"{server} answers, but has delivered nothing from port {port} for {seconds:.1f} s: check "
        "firewalls for UDP on all ports of the server, the MTU of the path, and that no two addresses are one thc-ps"
    )
