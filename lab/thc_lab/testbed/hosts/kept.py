"""A host with its keeper: processes that go on when the connection ends."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from byteps_thc.errors import TransportError
from thc_lab.testbed.hosts.host import Host, Outcome
from thc_lab.testbed.hosts.namespaces import with_its_sysfs
from thc_lab.testbed.process import PlannedFile, PlannedProcess

_KEEPER = "thc_lab.testbed.keeper"
#: A request that does not wait for a process; a loaded host takes its time to start Python.
_REQUEST_TIMEOUT_S = 60.0


class KeptHost:
    """Asks the keeper of a host. TransportError names the host, and what the keeper said."""

    def __init__(self, host: Host, folder: str, namespace: str | None = None) -> None:
        """folder: of the testbed's records on that host, below the user's state folder. namespace: that the host is."""
        self.host = host
        self._namespace = namespace
        self.name = host.name
        self._folder = folder

    def at(self, host: Host) -> KeptHost:
        """The same records, reached in another way."""
        return KeptHost(host, self._folder)

    async def start(self, process: PlannedProcess, private: Mapping[str, str] | None = None) -> bool:
        """Start a process; False when it runs already. private: values of variables, those of others, too.

        They travel on the keeper's standard input, and are in no command line and no file.
        """
        values = private or {}
        answer = await self._ask(
            "start",
            name=process.name,
            argv=process.argv if self._namespace is None else with_its_sysfs(self._namespace, process.argv),
            environment={**process.environment, **{name: values[name] for name in process.private}},
            cwd=process.folder,
        )
        return bool(answer["new"])

    async def wait_ready(self, process: PlannedProcess) -> dict[str, Any]:
        """See following.wait_ready."""
        timeout_s = process.ready_timeout_s
        answer: dict[str, Any] = await self._ask(
            "wait",
            timeout_s=timeout_s,
            request_timeout_s=timeout_s + _REQUEST_TIMEOUT_S,
            name=process.name,
            pattern=process.ready,
        )
        return answer

    async def processes(self) -> list[dict[str, Any]]:
        """Name, pid, state ("running", "ended", "lost"), status, age_s and argv of all that were started."""
        return list(await self._ask("list"))

    async def stop(self, names: Sequence[str] | None, grace_s: float) -> list[str]:
        """End processes (None: all) with what they have started: SIGTERM, after a while SIGKILL; names of the ended."""
        return list(
            await self._ask("stop", request_timeout_s=grace_s + _REQUEST_TIMEOUT_S, names=names, grace_s=grace_s)
        )

    async def watch(
        self, names: Sequence[str], *, follow: bool = True, last_lines: int | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """See following.watch."""
        request = {"folder": self._folder, "names": list(names), "follow": follow, "last_lines": last_lines}
        async for line in self.host.stream(self._command("watch"), text=json.dumps(request) + "\n"):
            event: dict[str, Any] = json.loads(line)
            yield event

    async def tail(self, name: str, count: int) -> list[str]:
        """Last lines of a process's output."""
        return list(await self._ask("tail", name=name, count=count))

    async def put(self, files: Sequence[PlannedFile]) -> None:
        """Make files and folders."""
        await self._ask("put", files=[asdict(file) for file in files])

    async def read(self, path: str) -> str:
        """Contents of a file."""
        return str(await self._ask("read", path=path))

    async def remove(self) -> list[str]:
        """Remove files, logs and records, when all processes have ended; paths that others have by now, which stay."""
        return list(await self._ask("remove"))

    async def probe(self, programs: Sequence[str], listens: Sequence[str]) -> dict[str, Any]:
        """See probe.probe."""
        answer: dict[str, Any] = await self._ask("probe", programs=list(programs), listens=list(listens))
        return answer

    def _command(self, command: str) -> list[str]:
        return [self.host.python, "-P", "-m", _KEEPER, command]

    async def _ask(self, command: str, *, request_timeout_s: float = _REQUEST_TIMEOUT_S, **request: Any) -> Any:
        text = json.dumps({"folder": self._folder} | request) + "\n"
        outcome = await self.host.run(self._command(command), text=text, timeout_s=request_timeout_s)
        return self._result(command, outcome)

    def _result(self, command: str, outcome: Outcome) -> Any:
        try:
            answer: Mapping[str, Any] = json.loads(outcome.output)
        except json.JSONDecodeError:
            what = shlex.join(self._command(command))
            raise TransportError(
                f"{self.name}: `{what}` failed with {outcome.reason}. Is byteps_thc of this version installed there?"
            ) from None
        if "error" in answer:
            raise TransportError(f"{self.name}: {answer['error']}")
        return answer["result"]
