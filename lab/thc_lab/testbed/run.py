"""`thc testbed run`: starts the workers, shows what they print, and ends all of them when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from byteps_thc.errors import TransportError
from thc_lab.testbed.bring_up import Say, start_processes
from thc_lab.testbed.failure import how_it_ended, with_last_lines
from thc_lab.testbed.hosts.kept import KeptHost
from thc_lab.testbed.hosts.together import together
from thc_lab.testbed.process import Plan
from thc_lab.testbed.state import InUseError

#: From SIGTERM to SIGKILL.
STOP_GRACE_S = 10.0
#: BytePS's scheduler and servers end with the last worker, a moment before or after its process.
_LAST_MOMENTS_S = 60.0
#: They serve one training, and end with it.
_OF_ONE_TRAINING = ("scheduler", "server")

#: Shows a line that a worker has printed: its name, and the line.
Show = Callable[[str, str], None]


async def clear_last_run(plan: Plan, hosts: Mapping[str, KeptHost]) -> None:
    """End BytePS's scheduler and servers of an earlier run. InUseError while its workers run."""
    if await refuse_beside_workers(plan, hosts) and (errors := await stop(plan, hosts, _OF_ONE_TRAINING)):
        raise TransportError("\n".join(errors))


async def refuse_beside_workers(plan: Plan, hosts: Mapping[str, KeptHost]) -> bool:
    """InUseError while workers run, the plan's or others; else whether there were any."""
    lists = dict(zip(hosts, await together(kept.processes() for kept in hosts.values()), strict=True))
    # Everything else is the same in both runs; workers may have been others.
    others = {process.name for process in plan.processes if process.role != "worker"}
    workers = [(name, each) for name, found in lists.items() for each in found if each["name"] not in others]
    running = [f"{each['name']} on {name}" for name, each in workers if each["state"] == "running"]
    if running:
        raise InUseError(
            f"workers of another run are there: {', '.join(running)}. Wait for them (thc testbed status), or end them: "
            "thc testbed down"
        )
    return bool(workers)


async def stop(plan: Plan, hosts: Mapping[str, KeptHost], roles: tuple[str, ...]) -> list[str]:
    """End the processes of these roles, on all hosts at once; errors of hosts on which they could not be."""
    names = {name: [p.name for p in plan.processes if p.host == name and p.role in roles] for name in hosts}
    stopping = [kept.stop(names[name], STOP_GRACE_S) for name, kept in hosts.items() if names[name]]
    results = await asyncio.gather(*stopping, return_exceptions=True)
    return [str(result) for result in results if isinstance(result, BaseException)]


async def train(
    plan: Plan, hosts: Mapping[str, KeptHost], say: Say, show: Show, time_limit_s: float, private: Mapping[str, str]
) -> None:
    """Start the workers and wait until all have ended with exit status 0.

    Everything but them is ready. TransportError when a process fails or the time is over: which one, where, how it
    ended, the last it said. However this ends, no worker runs afterwards, nor BytePS's scheduler and servers; `say`
    gets why, where one may still.
    """
    workers = [plan.process(name) for name in plan.workers]
    others = [process.name for process in plan.processes if process.role != "worker"]
    try:
        await start_processes(workers, hosts, lambda _: None, ready=others, private=private)
        try:
            async with asyncio.timeout(time_limit_s):
                await _Run(plan, hosts, show).until_done()
        except TimeoutError:
            raise TransportError(f"the workers did not end within --time-limit, {time_limit_s:g} s") from None
    finally:
        # Shielded: Ctrl-C must not interrupt what it has caused.
        stopping = asyncio.create_task(stop(plan, hosts, ("worker", *_OF_ONE_TRAINING)))
        for error in await asyncio.shield(stopping):
            say(f"processes may still run (thc testbed down): {error}")


class _Run:
    """What is known of the processes while the workers train."""

    def __init__(self, plan: Plan, hosts: Mapping[str, KeptHost], show: Show) -> None:
        self._plan = plan
        self._hosts = hosts
        self._show = show
        self._events: asyncio.Queue[dict[str, Any] | BaseException] = asyncio.Queue()
        self._left = set(plan.workers)

    async def until_done(self) -> None:
        """Follow all processes until the last worker is done. TransportError for the first that fails."""
        watching = [asyncio.create_task(self._watch(kept)) for kept in self._hosts.values()]
        try:
            early: str | None = None
            while self._left:
                try:
                    event = await asyncio.wait_for(self._events.get(), None if early is None else _LAST_MOMENTS_S)
                except TimeoutError:
                    raise await self._failure(early or "", 0, " while workers were training") from None
                if isinstance(event, BaseException):
                    raise event
                early = await self._take(event) or early
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _watch(self, kept: KeptHost) -> None:
        names = [process.name for process in self._plan.processes if process.host == kept.name]
        if not names:
            return
        unfinished = set(names)
        try:
            async for event in kept.watch(names):
                self._events.put_nowait(event)
                if "ended" in event:
                    unfinished.discard(event["name"])
            if left := sorted(unfinished):
                raise TransportError(f"{kept.name}: nobody watches {', '.join(left)} any more; its keeper has ended")
        except Exception as error:
            self._events.put_nowait(error)

    async def _take(self, event: dict[str, Any]) -> str | None:
        """Name of a process that has ended well, and should not have before the workers."""
        process = self._plan.process(event["name"])
        worker = process.role == "worker"
        if "line" in event:
            if worker:
                self._show(process.name, event["line"])
            return None
        if event["ended"] != 0 and (worker or process.essential):
            raise await self._failure(process.name, event["ended"], "")
        if worker:
            self._left.discard(process.name)
            return None
        return process.name if process.essential else None

    async def _failure(self, name: str, status: int | None, when: str) -> TransportError:
        process = self._plan.process(name)
        message = f"{name} on {process.host} {how_it_ended(status)}{when}"
        return TransportError(await with_last_lines(message, process, self._hosts[process.host]))
