"""The commands of `thc testbed` that change hosts or look at them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from byteps_thc.errors import ConfigurationError
from byteps_thc.tools.consoles import table_console
from thc_lab.testbed import check as checking
from thc_lab.testbed import operations
from thc_lab.testbed.cli import DescriptionFile
from thc_lab.testbed.plan import plan as make_plan
from thc_lab.testbed.process import Plan
from thc_lab.testbed.reading import load
from thc_lab.testbed.show import status_table
from thc_lab.testbed.state import InUseError, State

_A_DAY_S = 86400.0
_T = TypeVar("_T")


def check(file: DescriptionFile) -> None:
    """Examine every host, and change nothing. Exit code 1: something has to be mended before `up`."""
    plan = make_plan(load(file))
    with Console(stderr=True).status("Examining the hosts ..."):
        lines = run_to_end(checking.check(plan))
    table_console().print(checking.as_table(plan, lines))
    if any(line.verdict == "problem" for line in lines):
        raise typer.Exit(1)


def up(file: DescriptionFile) -> None:
    """Set hosts up and start everything but the workers. What is there already stays as it is."""
    plan = make_plan(load(file))
    run_to_end(operations.up(plan, typer.echo))
    typer.echo(f"testbed {plan.name} is up: thc testbed run {file}")


def run(
    file: DescriptionFile,
    down: Annotated[
        bool, typer.Option("--down", help="Take the testbed down in the end, also after a failure.")
    ] = False,
    time_limit: Annotated[float, typer.Option(help="Seconds after which the workers are ended.")] = _A_DAY_S,
) -> None:
    """Bring the testbed up, start the workers, show what they print; end all of them when one fails."""
    testbed = load(file)
    plan = make_plan(testbed)
    ours = True
    try:
        results = run_to_end(operations.run(plan, typer.echo, _show, time_limit, testbed.training.environment))
        if results is not None:
            from thc_lab.testbed.results import table  # the demo's table: slow to import

            table_console().print(table(results))
    except InUseError:
        ours = False  # --down is not for another run's testbed
        raise
    finally:
        if down and ours:
            run_to_end(operations.down(plan.name, typer.echo))
        elif ours and State(plan.name).plan() is not None:  # also after a failure, or Ctrl-C
            typer.echo(f"testbed {plan.name} stays up for another run; thc testbed down {file} removes it")


def status(file: DescriptionFile) -> None:
    """Show what runs where, and since when. Exit code 1: something failed, or a host is not reached."""
    plan = _plan_of(file)
    found, unreached = run_to_end(operations.processes(plan))
    for reason in dict.fromkeys(unreached.values()):
        typer.echo(reason, err=True)
    table_console().print(status_table(plan, found, unreached))
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
    run_to_end(operations.logs(plan, names or known, _show, follow=follow, last_lines=lines))


def down(file: DescriptionFile) -> None:
    """End everything and undo the set-up. It may be repeated, and works after a crash."""
    run_to_end(operations.down(load(file).name, typer.echo))


def run_to_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Run; the first signal that ends programs cancels it, so that what was started is ended in order.

    SystemExit then has the exit code of shells, 128 + signal. More signals change nothing.
    """

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
            if not received:
                raise
            raise SystemExit(128 + received[0]) from None

    return asyncio.run(cancellable())


def _plan_of(file: Path) -> Plan:
    """The plan of what is up; over ssh, where another machine may have brought it up, else that of the description."""
    plan = make_plan(load(file))
    up = State(plan.name).plan()
    if up is None and plan.reach == "namespaces":
        raise ConfigurationError(f"testbed {plan.name} is not up (thc testbed up {file}), or another user's")
    return up or plan


def _show(name: str, line: str) -> None:
    print(f"[{name}] {line}", flush=True)
