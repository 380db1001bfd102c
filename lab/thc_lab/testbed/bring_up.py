"""`thc testbed up`: namespaces, cables, files, set-up all processes but the workers. What is there stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from byteps_thc.errors import ConfigurationError, TransportError
from thc_lab.testbed.failure import how_it_ended, with_last_lines
from thc_lab.testbed.hosts import namespaces
from thc_lab.testbed.hosts.kept import KeptHost
from thc_lab.testbed.hosts.together import together
from thc_lab.testbed.process import HostSetup, Plan, PlannedProcess
from thc_lab.testbed.setup import Undoable
from thc_lab.testbed.state import State

Say = Callable[[str], None]


async def make_hosts(plan: Plan, state: State) -> None:
    """Namespaces and cables of a plan that has them. ConfigurationError: they cannot be made, or are another's."""
    if plan.reach != "namespaces":
        return
    if (reason := namespaces.why_not()) is not None:
        raise ConfigurationError(reason)
    journal = state.journal
    for host in plan.hosts:
        name = namespaces.namespace_of(plan.name, host.name)
        there = namespaces.is_there(name)
        if there and host.name not in journal.namespaces:
            raise ConfigurationError(
                f"there is a network namespace {name} that this testbed has not made: rename the testbed, or remove it "
                f"(ip netns del {name})"
            )
        if not there:
            if host.name not in journal.namespaces:
                journal.namespaces.append(host.name)
                state.write()
            namespaces.add(name)
        await _hear_signals()
    for cable in plan.cables:
        key = f"{cable.a.host}/{cable.a.interface}"
        wired = namespaces.wired(plan.name, cable)
        if key in journal.cables and namespaces.has(wired.a) and namespaces.has(wired.b):
            continue
        namespaces.connect(wired)
        if key not in journal.cables:
            journal.cables.append(key)
            state.write()
        await _hear_signals()


async def _hear_signals() -> None:
    """Let Ctrl-C cancel here: making hosts waits for nothing else."""
    await asyncio.sleep(0)


async def prepare_hosts(plan: Plan, hosts: Mapping[str, KeptHost], state: State, say: Say) -> None:
    """Put the files of a plan where they belong, and set hosts up."""
    state.journal.hosts = [host.name for host in plan.hosts]
    state.write()
    await together(kept.put([file for file in plan.files if file.host == name]) for name, kept in hosts.items())
    await together(_set_up(setup, hosts[setup.host], state, say) for setup in plan.setups)


async def _set_up(setup: HostSetup, kept: KeptHost, state: State, say: Say) -> None:
    undoable = await Undoable.on(kept)
    for number, step in enumerate(setup.steps):
        if await undoable.is_done(step):
            continue
        done = state.journal.steps.setdefault(setup.host, [])
        if number not in done:
            done.append(number)
            state.write()
        say(f"{setup.host}: {step.what}")
        await undoable.do(step)


async def start_processes(
    processes: Iterable[PlannedProcess],
    hosts: Mapping[str, KeptHost],
    say: Say,
    *,
    ready: Iterable[str] = (),
    private: Mapping[str, str] | None = None,
) -> None:
    """Start processes, each when those are ready that it comes after. TransportError: one ended, or was not in time.

    ready: names of processes that are ready already. private: values of variables that the plan only names.
    """
    wanted = list(processes)
    events = {process.name: asyncio.Event() for process in wanted}
    known = {*ready, *events}

    async def start(process: PlannedProcess) -> None:
        for name in process.after:
            if name not in known:
                raise ConfigurationError(f"{process.name} comes after {name}, which is no process of this testbed")
            if name in events:
                await events[name].wait()
        await _start(process, hosts[process.host], say, private or {})
        events[process.name].set()

    await together(start(process) for process in wanted)


async def _start(process: PlannedProcess, kept: KeptHost, say: Say, private: Mapping[str, str]) -> None:
    new = await kept.start(process, private)
    if process.ready is not None:
        answer = await kept.wait_ready(process)
        if not answer["ready"]:
            ended = "ended" in answer
            how = (
                f"{how_it_ended(answer['ended'])} before it was ready"
                if ended
                else (
                    f"was not ready after {process.ready_timeout_s:g} s: no line of its log matches {process.ready!r}"
                )
            )
            raise TransportError(await with_last_lines(f"{process.name} on {process.host} {how}", process, kept))
    if new and process.role != "worker":
        say(f"{process.name} runs on {process.host}")
