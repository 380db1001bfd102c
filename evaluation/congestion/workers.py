"""Starts programs of workers on hosts, has them average, and combines their reports."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from congestion.control import Controls
from thc_lab import fork_server

#: Between a command and the time that it names: all programs have read it then.
_LEAD_S = 0.03
#: More than an answer takes once the average is done or late.
_ANSWER_S = 5.0
_LOG_LINES = 12


class Host(Protocol):
    """A program's place: a network namespace with an address."""

    namespace: str
    ip: str


@dataclass
class Steps:
    """Consecutive averages of all workers; counters since the reducers were opened, sums of all workers."""

    seconds: list[float] = field(default_factory=list)
    """of each, from the common begin to the last worker's end"""
    spread: list[float] = field(default_factory=list)
    """of each, the last worker's time over the first one's"""
    setup_s: float = 0.0
    packets: int = 0
    repeated: int = 0
    moves: int = 0
    """times that a worker changed servers: one seemed dead, or alive again"""
    rejoins: int = 0
    """times that a server did not know a worker any more"""
    cpu_s: float = 0.0
    """processor time of a step, all workers, without the servers"""
    codes_per_packet: int = 0

    @property
    def repeated_share(self) -> float:
        """Share of all packets that workers sent."""
        return self.repeated / self.packets if self.packets else 0.0


class Workers:
    """Programs, one on each host; a context manager. folder: for logs and the socket.

    each: workers of a program; None: one, a rank.
    """

    def __init__(self, hosts: Sequence[Host], folder: Path, each: int | None = None) -> None:
        self._folder = folder
        self._jobs = 0
        control = folder / "control"
        control.unlink(missing_ok=True)
        self._controls = Controls(control, len(hosts))
        program = Path(__file__).with_name("rank.py" if each is None else "crowd.py")
        options = ["--first", hosts[0].ip] if each is None else ["--each", str(each)]
        environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self._processes = [
            fork_server.start_program(
                program,
                *("--rank", str(number), "--ranks", str(len(hosts)), "--namespace", host.namespace),
                *("--control", str(control), *options),
                environment=environment,
                log=self._log(number),
            )
            for number, host in enumerate(hosts)
        ]

    def __enter__(self) -> Self:
        try:
            self._controls.accept()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._controls.close()
        for process in self._processes:
            if kind is not None:
                process.kill()
            process.wait(30)

    def kill(self) -> None:
        """End the programs without a word."""
        for process in self._processes:
            process.kill()

    def open(self, scheme: str, servers: Sequence[str] | None, parameters: int, limit_s: float) -> Steps:
        """Open a way to average; see Rank.open."""
        self._jobs += 1
        answers = self._controls.ask(
            "open", limit_s, scheme=scheme, servers=servers, parameters=parameters, job=self._jobs
        )
        return self._summed(Steps(setup_s=max(answer["seconds"] for answer in answers)), answers)

    def average(self, steps: Steps, limit_s: float) -> None:
        """Average once more, and add that to the steps. Raises TimeoutError if a worker takes longer than limit_s."""
        begin_s = time.monotonic() + _LEAD_S
        answers = self._controls.ask("average", limit_s + _ANSWER_S, begin_s=begin_s, limit_s=limit_s)
        self._summed(steps, answers)
        if any(answer.get("late") for answer in answers):
            raise TimeoutError(f"no average within {limit_s:g} s")
        assert len({answer["average"] for answer in answers}) == 1, "workers have different averages"
        took_s = [end_s - begin_s for answer in answers for end_s in answer["ends_s"]]
        steps.seconds.append(max(took_s))
        steps.spread.append(max(took_s) / min(took_s))

    def close(self, limit_s: float) -> None:
        """Close the way that open() has opened."""
        self._controls.ask("close", limit_s)

    def last_words(self) -> str:
        """The ends of the logs, for an error."""
        logs = [self._log(number) for number in range(len(self._processes))]
        return "\n".join(line for log in logs for line in log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    def _log(self, number: int) -> Path:
        return self._folder / f"worker{number}.log"

    @staticmethod
    def _summed(steps: Steps, answers: Sequence[dict[str, Any]]) -> Steps:
        for name in ("packets", "repeated", "moves", "rejoins", "cpu_s"):
            setattr(steps, name, sum(answer.get(name, 0) for answer in answers))
        steps.codes_per_packet = answers[0].get("codes_per_packet", 0)
        return steps
