"""A host of a testbed: a session with an agent in a network namespace of this machine."""

import asyncio
import contextlib
import json
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from byteps_thc._base.errors import TransportError
from thc_lab.namespaces import command_inside, with_its_sysfs
from thc_lab.testbed import agent
from thc_lab.testbed.process import PlannedFile, PlannedHost, PlannedProcess

_PROGRAM = Path(agent.__file__).read_text(encoding="utf-8")
#: A loaded host takes its time to start Python.
_REQUEST_TIMEOUT_S = 60.0
#: The agent has ended all processes by then.
_CLOSE_TIMEOUT_S = agent.GRACE_S + 15.0
_LINE_LIMIT_BYTES = 1 << 23


class Host:
    """An open session. TransportError, which names the host, when it is lost or refuses something.

    events: gets (name of a process, line of its output or exit status), and a TransportError when the session is lost.
    """

    def __init__(
        self, planned: PlannedHost, namespace: str, process: asyncio.subprocess.Process, events: "Events"
    ) -> None:
        self.name = planned.name
        self._namespace = namespace
        self._process = process
        self._events = events
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._errors: deque[str] = deque(maxlen=5)
        self._lost: TransportError | None = None
        self._tasks = [asyncio.ensure_future(work) for work in (self._receive(), self._keep_errors())]

    @classmethod
    async def open(cls, planned: PlannedHost, namespace: str, events: "Events") -> "Host":
        """Enter the namespace, and start the agent."""
        command = [*command_inside(namespace), planned.python, "-P", "-c", _PROGRAM]
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=pipe, limit=_LINE_LIMIT_BYTES,
                start_new_session=True,  # Ctrl-C is for this process
            )  # fmt: skip
        except OSError as error:
            raise TransportError(f"{planned.name}: {command[0]} cannot be started: {error.strerror}") from error
        return cls(planned, namespace, process, events)

    async def probe(self, programs: Sequence[str], listens: Sequence[str]) -> dict[str, Any]:
        """Return Agent._probe's result."""
        answer: dict[str, Any] = await self._ask("probe", programs=list(programs), listens=list(listens))
        return answer

    async def put(self, files: Sequence[PlannedFile]) -> None:
        """Make files and folders in the run folder."""
        # Should this process be killed, nobody else removes the namespace.
        at_end = [["ip", "netns", "del", self._namespace]]
        await self._ask("put", files=[asdict(file) for file in files], at_end=at_end)

    async def read(self, path: str) -> str:
        """Return the contents of a file."""
        return str(await self._ask("read", path=path))

    async def start(self, process: PlannedProcess, private: Mapping[str, str]) -> None:
        """Start a process. private: values of variables of which the plan has the names. No command line has them."""
        values = {name: private[name] for name in process.private}
        argv = with_its_sysfs(self._namespace, process.argv)
        environment = {**process.environment, **values}
        await self._ask("start", name=process.name, argv=list(argv), environment=environment, cwd=process.folder)

    async def close(self) -> None:
        """End the session: the agent ends all that it has started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*self._tasks, self._process.wait()), _CLOSE_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self._process.wait(), return_exceptions=True)

    async def _ask(self, do: str, **request: Any) -> Any:
        if self._lost is not None:
            raise self._lost
        number = len(self._answers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._write(json.dumps({"id": number, "do": do, **request}))
        try:
            return await asyncio.wait_for(answer, _REQUEST_TIMEOUT_S)
        except TimeoutError:
            raise TransportError(f"{self.name}: no answer within {_REQUEST_TIMEOUT_S:g} s") from None

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(line.encode() + b"\n")

    async def _keep_errors(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self._errors.append(line.decode(errors="replace").strip())

    async def _receive(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            event = json.loads(line)
            if "id" not in event:
                self._events.put_nowait((event["name"], event["line"] if "line" in event else event["status"]))
            elif not (answer := self._answers[event["id"]]).done():
                if "error" in event:
                    answer.set_exception(TransportError(f"{self.name}: {event['error']}"))
                else:
                    answer.set_result(event["result"])
        await self._process.wait()
        await self._tasks[1]
        self._lost = TransportError(
            f"the session with {self.name} ended: {' | '.join(self._errors) or 'without a word'}"
        )
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._lost)
        self._events.put_nowait(self._lost)


#: Events of the hosts, in order.
Events = asyncio.Queue[tuple[str, str | int] | TransportError]
