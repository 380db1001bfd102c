"""The `thc testbed` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import typer

from byteps_thc.tools.lazy_commands import LazyCommands


class TestbedCommands(LazyCommands):
    """Each command is in a module of its own, next to what it does."""

    modules: ClassVar = {
        "plan": "thc_lab.testbed.plan_cli:print_plan",
        "check": "thc_lab.testbed.run_cli:check",
        "up": "thc_lab.testbed.run_cli:up",
        "run": "thc_lab.testbed.run_cli:run",
        "status": "thc_lab.testbed.run_cli:status",
        "logs": "thc_lab.testbed.run_cli:logs",
        "down": "thc_lab.testbed.run_cli:down",
    }


app = typer.Typer(
    cls=TestbedCommands,
    no_args_is_help=True,
    help="A training with its servers, switch and hosts, from one description (docs/testbed.md).",
)

#: The argument of all commands.
DescriptionFile = Annotated[Path, typer.Argument(metavar="TESTBED.toml", help="Description (docs/testbed.md).")]


@app.callback()
def options() -> None:
    """Make a group of it, though all commands are in `modules`."""
