"""The `thc testbed` command."""

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from byteps_thc._cli.consoles import table_console
from byteps_thc._cli.lazy_commands import LazyCommands
from thc_lab.testbed import run as running
from thc_lab.testbed.plan import plan as make_plan
from thc_lab.testbed.plan_text import as_text
from thc_lab.testbed.process import PlannedProcess
from thc_lab.testbed.reading import load

_A_DAY_S = 86400.0
_T = TypeVar("_T")


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    help="A training with its servers, switch and hosts, from one description (docs/testbed.md).",
)
DescriptionFile = Annotated[Path, typer.Argument(metavar="TESTBED.toml", help="Description (docs/testbed.md).")]


@app.command("plan")
def print_plan(file: DescriptionFile) -> None:
    """Print every process and file that a run needs. Keys appear by path, secrets by name only."""
    typer.echo(as_text(make_plan(load(file))), nl=False)


@app.command()
def check(file: DescriptionFile) -> None:
    """Examine every host. Exit code 1: something has to be mended before `run`."""
    plan = make_plan(load(file))
    problems = run_to_end(running.check(plan))
    for problem in problems:
        typer.echo(problem)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"testbed {plan.name} can run")


@app.command()
def run(
    file: DescriptionFile,
    everything: Annotated[
        bool, typer.Option("--all", help="Show what all processes print, not the workers alone.")
    ] = False,
    time_limit: Annotated[float, typer.Option(help="Seconds after which the workers are ended.")] = _A_DAY_S,
) -> None:
    """Start everything, show the workers' output, and end everything: after a failure and Ctrl-C, too."""
    testbed = load(file)

    def show(process: PlannedProcess, line: str) -> None:
        if everything or process.role == "worker":
            print(f"[{process.name}] {line}", flush=True)

    results = run_to_end(
        running.run(make_plan(testbed), typer.echo, show, time_limit, private=testbed.training.environment)
    )
    if results is not None:
        from thc_lab.testbed.results import table  # the demo's table: slow to import

        table_console().print(table(results))


def run_to_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Run; the first signal that ends programs cancels it, so that processes and namespaces end in order.

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
