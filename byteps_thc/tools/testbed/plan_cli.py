"""The `thc testbed plan` command."""

from __future__ import annotations

import typer

from byteps_thc.tools.testbed.cli import DescriptionFile
from byteps_thc.tools.testbed.description import load
from byteps_thc.tools.testbed.plan import plan


def print_plan(file: DescriptionFile) -> None:
    """Print every process, file and change of hosts that a run needs."""
    typer.echo(plan(load(file)))
