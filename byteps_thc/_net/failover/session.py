"""Keep a session of pushes on other servers after each move (docs/contributors/protocol.md, "Failing over")."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from byteps_thc._base.arrays import F32, U8, U16
from byteps_thc._base.errors import RestartError, ServerRefusedError, ThcError, TransportError
from byteps_thc._net.ending import close_at_exit
from byteps_thc._net.failover import plan as plans
from byteps_thc._net.failover import watch
from byteps_thc._net.failover.agreement import Agreement
from byteps_thc._net.failover.stages import CodeStage, KeptStages, NormStage, Stage
from byteps_thc._net.session import Session

if TYPE_CHECKING:  # a session of servers needs no torch
    from byteps_thc._base.torch_private import Store

_logger = logging.getLogger("byteps_thc")

#: Length of a wait before it checks whether its session is still the current one.
_SLICE_S = 0.5
#: From one attempt to the next, if no server answers.
_PAUSE_S = 0.5
#: Longest opening of a session with servers that have just answered: a longer one is a fault, and ranks ask again.
LONGEST_CONNECT_S = 5.0
#: Refusals by a server before a move excludes it: at the first attempt it may still have workers of before.
_REFUSALS = 2
#: A move excludes a server that is silent for so long, or for twice as long if round trips are long.
_LONG_QUESTION_S = 1.0
#: Wait for other ranks after the deadline: longer than an attempt, so that all ranks fail together.
_GRACE_S = 2.0 * _LONG_QUESTION_S + LONGEST_CONNECT_S + 2.0
#: The reason for a move after unknown_job.
_LOST_JOB = "a server has lost rounds of the job: it was restarted, or dropped the job after --idle-timeout"
#: Looks at the same stage without a result, a quarter of a second each, before a rejoined session is dropped.
_STUCK_LOOKS = 4


class FailoverSession:
    """As a Session to its callers. Made by all ranks of a group; any thread may call any method.

    first: the session of generation 0, with all `servers`. open: returns a session with some of them, of that
    generation. ask: each server's answer, within so many seconds (ask_servers()). deadline_s: of waits for other ranks,
    or for a server. store: for these ranks and nothing else. moved: called at every move. lost: called when this rank
    cannot move any more, as its store is gone. Raises Session's errors, TransportError if no server is left within the
    deadline, DeadlineError if a rank does not take part in a move.
    """

    compares_sums = False  # no switches here

    def __init__(
        self,
        first: Session,
        servers: Sequence[str],
        open: Callable[[Sequence[str], int], Session],
        ask: Callable[[float, float], Sequence[str]],
        deadline_s: float,
        store: "Store",
        rank: int,
        ranks: int,
        *,
        moved: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self._servers, self._open_session, self._ask_servers = tuple(servers), open, ask
        self._addresses = tuple(first.addresses)  # IP:PORT of each, as in errors
        self._deadline_s, self._moved = deadline_s, moved
        self.workers, self.code_bits, self.value_bits = first.workers, first.code_bits, first.value_bits
        self.codes_per_packet = first.codes_per_packet
        self._used = tuple(range(len(self._servers)))
        self._session, self._generation, self._stages = first, 0, KeptStages()
        self._lock = threading.RLock()  # guards all attributes above
        self._failure: ThcError | None = None
        self._counted: dict[str, int] = {}  # of finished sessions
        self._closing = threading.Event()
        self._agreement = Agreement(store, rank, ranks, self._closing)
        self._presences = watch.Presences(self._servers)
        self._pace = watch.QuestionPace(len(self._servers))
        self._wanted: str | None = None  # why to move when the next norms are pushed
        self._stuck: tuple[Stage | None, int] = (None, 0)
        self._moved_for: tuple[Stage | None, float] = (None, 0.0)  # a stage without a result in a move, since when
        self._watch = watch.Watch(self._presences, self._question, self._look, lost)
        close_at_exit(self.close)

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self._servers[number] for number in self._used)

    def push_norms(self, partition: int, norms: F32, max_norms: F32, *, compared: int = 0) -> NormStage:
        """As Session.push_norms(). A worker pushes into the same max_norms again only once it has the average."""
        with self._lock:
            if self._wanted is not None:
                self._move(self._wanted)
            stage = self._stages.new_norms(partition, norms, max_norms, compared)
            self._push(stage)
        return stage

    def push_codes(self, partition: int, codes: U8, aggregate: U8 | U16, contributions: U8) -> CodeStage:
        """As Session.push_codes(), after its norms. The arrays are in use until the next norms have their maximum."""
        with self._lock:
            stage = self._stages.new_codes(partition, codes, aggregate, contributions)
            self._push(stage)
        return stage

    def wait(self, stage: Stage) -> None:
        """As Session.wait(), without a timeout: the session's deadline applies."""
        while not stage.done:
            with self._lock:
                session, operation = self._current(), stage.operation
            assert operation is not None
            try:
                if session.is_done(operation, _SLICE_S):
                    with self._lock:
                        self._stages.finish(stage)
                    return
            except ThcError as error:
                with self._lock:
                    if self._current() is session:
                        self._move_on(error)

    def chunks(self, count: int) -> int:
        return -(-count // self.codes_per_packet)

    def counters(self) -> dict[str, int]:
        with self._lock:
            return _sum(self._counted, self._session.counters())

    def close(self) -> None:
        self._closing.set()
        self._watch.close()
        with self._lock:
            self._failure = self._failure or TransportError("the session is closed")
            self._session.close()

    def _current(self) -> Session:
        if self._failure is not None:
            raise self._failure
        return self._session

    def _push(self, stage: Stage) -> None:
        session = self._current()
        try:
            stage.push(session)
        except ThcError as error:
            self._move_on(error)  # including this stage, which lacks a result

    def _move_on(self, error: ThcError) -> None:
        """Move, if the session has ended because of a server; otherwise raise its error."""
        lost_round = isinstance(error, RestartError | ServerRefusedError) and self._session.counters()["rejoins"] > 0
        if not lost_round or self._closing.is_set():
            self._failure = self._failure or error
            raise error
        self._move(_LOST_JOB)

    def _look(self) -> None:
        """Decide, a few times a second, whether to move now or later."""
        generation, used = self._generation, self._used
        # Asked before the lock is held: pushes do not wait for the store.
        asked, later = self._agreement.asked(generation + 1), self._why_later(used)
        with self._lock:
            if self._failure is not None or self._closing.is_set():
                return
            if generation != self._generation or used is not self._used:  # another thread has moved meanwhile
                return
            why = asked or self._why_now()
            if why is None:
                self._wanted = self._wanted or later
                return
            with suppress(ThcError):  # the next push or wait raises it
                self._move(why)

    def _why_now(self) -> str | None:
        looks = self._looks_without_a_result()
        if looks and (gone := self._presences.gone(self._used)):
            return f"{self._names(gone)} does not answer"
        if looks and (late := watch.undelivered(packets := self._session.unanswered())):
            self._presences.blame([self._used[place] for place in late])
            return "; ".join(watch.describe(self.servers[place], packets[place]) for place in late)
        if looks >= _STUCK_LOOKS and self._session.counters()["rejoins"] > 0:
            return _LOST_JOB
        return None

    def _why_later(self, used: Sequence[int]) -> str | None:
        if going := self._presences.gone(used):
            return f"{self._names(going)} does not answer"
        if going := self._presences.leaving(used):
            return f"{self._names(going)} is about to end"
        return "a server is there again" if self._all_are_back(used) else None

    def _looks_without_a_result(self) -> int:
        """Return how often in a row the oldest stage without a result was the same, this time included."""
        oldest, (before, looks) = self._stages.oldest_unfinished(), self._stuck
        looks = 0 if oldest is None else looks + 1 if oldest is before else 1
        self._stuck = oldest, looks
        return looks

    def _all_are_back(self, used: Sequence[int]) -> bool:
        """Publish the servers that are back; on rank 0, return whether all ranks see one."""
        back = self._presences.back(used, time.monotonic())
        for number in back:
            self._agreement.tell(self._back(number), "")
        return self._agreement.rank == 0 and any(self._agreement.told(self._back(number)) for number in back)

    def _back(self, number: int) -> str:
        return f"{self._generation}/back{number}"

    def _names(self, numbers: Sequence[int]) -> str:
        return ", ".join(self._servers[number] for number in numbers)

    def _move(self, why: str) -> None:
        """Move to the servers that all ranks reach; the lock is held."""
        self._current()
        began_s = time.monotonic()
        self._session.close()
        self._counted = _sum(self._counted, self._session.counters())
        self._stages.settle(self._session)
        oldest = self._stages.oldest_unfinished()
        since_s = self._moved_for[1] if oldest is not None and oldest is self._moved_for[0] else began_s
        self._moved_for = oldest, since_s
        try:
            repeated = self._arrive(why, began_s + self._deadline_s, began_s > since_s + self._deadline_s)
        except ThcError as error:
            self._failure = error
            raise
        self._wanted, self._stuck = None, (None, 0)
        self._moved()
        if self._agreement.rank == 0:
            _logger.warning(
                f"moved to {len(self._used)} of {len(self._servers)} servers ({self._names(self._used)}): {why}; "
                f"messages sent again: {repeated}; the move took {time.monotonic() - began_s:.1f} s"
            )

    def _arrive(self, why: str, deadline: float, fruitless: bool) -> int:
        """Join servers together with all ranks; return the number of stages pushed again. fruitless: of Statement."""
        refusals: Counter[int] = Counter()
        while True:
            self._generation += 1
            self._agreement.ask(self._generation, why)
            tired = time.monotonic() > deadline
            statement = plans.Statement(self._stages.missing(), self._ask(), tired, fruitless)
            patience = max(deadline, time.monotonic()) + _GRACE_S
            texts = self._agreement.exchange(f"{self._generation}/left", statement.as_text(), patience)
            everyone = [plans.Statement.from_text(text) for text in texts]
            plan = plans.Plan.of(everyone, [number for number, count in refusals.items() if count >= _REFUSALS])
            if plan.fruitless:
                raise TransportError(
                    f"no server has delivered a result for {self._deadline_s:g} s, through several moves, the last "
                    f"because {why}: raise deadline_s if the network is slow"
                )
            session, errors = self._open_together(plan, deadline)
            if session is not None:
                break
            reasons = list(filter(None, [plans.why_none(self._servers, everyone), *errors]))
            if plan.given_up:
                raise TransportError(
                    f"no server serves all ranks, for {self._deadline_s:g} s: {'; '.join(dict.fromkeys(reasons))}"
                )
            named = (plans.named_in(error, self._addresses) for error in errors)
            refusals.update({number for number in named if number is not None})
            if self._agreement.rank == 0:
                _logger.warning(
                    "ranks could not go on with %s: %s", self._names(plan.servers) or "a server", reasons[-1]
                )
            self._closing.wait(_PAUSE_S)
        # Only servers of the last session, so that earlier ones count once. All ranks count a finding of any rank.
        self._presences.blame([number for number in plan.undelivered if number in self._used])
        lost = [number for number in {*self._used, *refusals} if number not in plan.servers]
        self._presences.moved(plan.servers, lost, refusals, time.monotonic())
        self._session, self._used = session, plan.servers
        return self._stages.push_again(session, plan.missing)

    def _ask(self) -> tuple[str, ...]:
        round_trip_s = self._session.counters()["smoothed_rtt_us"] * 1e-6
        self._presences.take(self._ask_servers(watch.patience_s(_LONG_QUESTION_S, round_trip_s), round_trip_s))
        return self._presences.words(time.monotonic())

    def _question(self) -> None:
        """Ask all servers whether they live; in the watch's thread."""
        with self._lock:
            session, used, counters = self._session, self._used, self.counters()
        began_s = time.monotonic()
        carried_bytes = counters["bytes_sent"] + counters["bytes_received"]
        if not self._pace.is_due(carried_bytes, began_s) and not self._presences.doubtful():
            return
        round_trip_s = counters["smoothed_rtt_us"] * 1e-6
        answers = self._ask_servers(self._presences.question_s(round_trip_s), round_trip_s)
        lasted_s = time.monotonic() - began_s
        heard = [number for number, ago_s in zip(used, session.heard(), strict=True) if ago_s < lasted_s]
        self._presences.take(answers, heard)

    def _open_together(self, plan: plans.Plan, deadline: float) -> tuple[Session | None, list[str]]:
        """Return a session with the servers of a plan, None unless all ranks have one, and each rank's error or ""."""
        session, error = self._open(plan)
        try:
            patience = max(deadline, time.monotonic()) + _GRACE_S
            errors = self._agreement.exchange(f"{self._generation}/joined", error, patience)
            if (read := self._generation - 2) > 0:
                self._agreement.forget(f"{read}/left", f"{read}/joined")
        except ThcError:
            if session is not None:
                session.close()
            raise
        if session is not None and any(errors):
            session.close()
            session = None
        return session, errors

    def _open(self, plan: plans.Plan) -> tuple[Session | None, str]:
        if not plan.servers:
            return None, "no server is there for all ranks"
        try:
            return self._open_session([self._servers[number] for number in plan.servers], self._generation), ""
        except ThcError as error:
            return None, str(error) or type(error).__name__


def _sum(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    latest = {name: second[name] for name in ("window_bytes", "smoothed_rtt_us", "least_rtt_us", "delivery_bps")}
    return {name: first.get(name, 0) + value for name, value in second.items()} | latest
