"""The commands of `thc testbed` that change hosts or look at them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from byteps_thc.errors import ConfigurationError, ThcError
from byteps_thc.tools.testbed import check as checking
from byteps_thc.tools.testbed.bring_up import make_hosts, prepare_hosts, start_processes
from byteps_thc.tools.testbed.cli import DescriptionFile
from byteps_thc.tools.testbed.description import load
from byteps_thc.tools.testbed.hosts.kept import KeptHost
from byteps_thc.tools.testbed.hosts.reach import reached, reached_or_not
from byteps_thc.tools.testbed.plan import plan as make_plan
from byteps_thc.tools.testbed.process import Plan
from byteps_thc.tools.testbed.run import clear_last_run, train
from byteps_thc.tools.testbed.show import status_table
from byteps_thc.tools.testbed.state import State
from byteps_thc.tools.testbed.take_down import take_down

_A_DAY_S = 86400.0
_T = TypeVar("_T")

Down = Annotated[bool, typer.Option("--down", help="Take the testbed down in the end, also after a failure.")]


def check(file: DescriptionFile) -> None:
    """Examine every host, and change nothing. Exit code 1: something has to be mended before `up`."""
    plan = make_plan(load(file))
    with Console(stderr=True).status("Examining the hosts ..."):
        lines = _run(checking.check(plan))
    Console().print(checking.as_table(plan, lines))
    if any(line.verdict == "problem" for line in lines):
        raise typer.Exit(1)


def up(file: DescriptionFile) -> None:
    """Set hosts up and start everything but the workers. What is there already stays as it is."""
    plan = make_plan(load(file))
    _run(_up(plan, State(plan.name), _say))
    _say(f"testbed {plan.name} is up: thc testbed run {file}")


def run(
    file: DescriptionFile,
    down: Down = False,
    time_limit: Annotated[float, typer.Option(help="Seconds after which the workers are ended.")] = _A_DAY_S,
) -> None:
    """Bring the testbed up, start the workers, show what they print; end all of them when one fails."""
    plan = make_plan(load(file))
    state = State(plan.name)
    try:
        results = _run(_train(plan, state, time_limit))
        if results is not None:
            from byteps_thc.tools.testbed.results import table  # the demo's table: slow to import

            Console().print(table(results))
    finally:
        if down:
            _down(state)
    if not down:
        _say(f"testbed {plan.name} stays up for another run; thc testbed down {file} removes it")


def status(file: DescriptionFile) -> None:
    """Show what runs where, and since when. Exit code 1: something of it should run, and does not."""
    plan = _plan_of(file)
    found, unreached = _run(_processes(plan))
    Console().print(status_table(plan, found, unreached))
    kept = [each for all_ in found.values() for each in all_]
    if unreached or any(each["state"] == "lost" or each["status"] not in (None, 0) for each in kept):
        raise typer.Exit(1)


def logs(
    file: DescriptionFile,
    names: Annotated[list[str] | None, typer.Argument(metavar="[PROCESS]...", help="Default: all.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show what comes, until the processes end.")] = False,
    lines: Annotated[int | None, typer.Option("--lines", "-n", help="Only the last ones of each there are.")] = None,
) -> None:
    """Print what processes have printed, each line with its process in front."""
    plan = _plan_of(file)
    known = [process.name for process in plan.processes]
    if unknown := [name for name in names or [] if name not in known]:
        raise ConfigurationError(f"no process is called {', '.join(unknown)}; there are: {', '.join(known)}")
    _run(_logs(plan, names or known, follow=follow, lines=lines))


def down(file: DescriptionFile) -> None:
    """End everything and undo the set-up. It may be repeated, and works after a crash."""
    _down(State(load(file).name))


def _down(state: State) -> None:
    async def locked() -> None:
        with state.locked():
            await take_down(state, _say)

    _run(locked())


async def _up(plan: Plan, state: State, say: Callable[[str], None]) -> None:
    with state.locked():
        state.begin(plan)
        await make_hosts(plan, state)
        async with reached(plan) as hosts:
            await _bring_up(plan, state, hosts, say)


async def _bring_up(plan: Plan, state: State, hosts: dict[str, KeptHost], say: Callable[[str], None]) -> None:
    await prepare_hosts(plan, hosts, state, say)
    await start_processes([process for process in plan.processes if process.role != "worker"], hosts, say)


async def _train(plan: Plan, state: State, time_limit_s: float) -> str | None:
    """The text of the training's results, if the plan has any."""
    async with contextlib.AsyncExitStack() as stack:
        with state.locked():
            state.begin(plan)
            await make_hosts(plan, state)
            hosts = await stack.enter_async_context(reached(plan))
            await clear_last_run(plan, hosts)
            await _bring_up(plan, state, hosts, _say)
        await train(plan, hosts, lambda name, line: print(f"[{name}] {line}", flush=True), time_limit_s)
        if plan.results is None:
            return None
        return await hosts[plan.process(plan.workers[0]).host].read(plan.results)


async def _processes(plan: Plan) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    async with reached_or_not(plan) as (hosts, errors):
        unreached = {name: str(error) for name, error in errors.items()}
        found = {}
        for name, kept in hosts.items():
            try:
                found[name] = await kept.processes()
            except ThcError as error:
                unreached[name] = str(error)
        for error in unreached.values():
            _say(error)
        return found, unreached


async def _logs(plan: Plan, names: list[str], *, follow: bool, lines: int | None) -> None:
    async def show(kept: KeptHost) -> None:
        wanted = [name for name in names if plan.process(name).host == kept.name]
        if wanted:
            async for event in kept.watch(wanted, follow=follow, last_lines=lines):
                if "line" in event:
                    print(f"[{event['name']}] {event['line']}", flush=True)

    async with reached(plan) as hosts:
        await asyncio.gather(*(show(kept) for kept in hosts.values()))


def _plan_of(file: DescriptionFile) -> Plan:
    """The plan of what is up, else that of the description."""
    plan = make_plan(load(file))
    return State(plan.name).plan() or plan


def _say(text: str) -> None:
    typer.echo(text)


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end; the first signal that ends programs cancels, so that what was started is ended in order."""

    async def cancellable() -> _T:
        task = asyncio.ensure_future(work)
        received: list[int] = []

        def cancel(number: int) -> None:
            if not received:
                received.append(number)
                task.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, cancel, number)
        try:
            return await task
        except asyncio.CancelledError:
            raise typer.Exit(128 + received[0] if received else 1) from None

    return asyncio.run(cancellable())
