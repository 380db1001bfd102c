"""The `thc testbed plan` command."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from byteps_thc.tools.testbed.cli import DescriptionFile
from byteps_thc.tools.testbed.description import load
from byteps_thc.tools.testbed.kubernetes import manifests
from byteps_thc.tools.testbed.plan import plan
from byteps_thc.tools.testbed.plan_text import as_json, as_text
from byteps_thc.tools.testbed.slurm import batch_script


class Format(Enum):
    """What a plan is printed as."""

    TEXT = "text"
    JSON = "json"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


def print_plan(
    file: DescriptionFile,
    format: Annotated[
        Format,
        typer.Option(help="slurm: a script for sbatch; kubernetes: manifests for kubectl apply -f, as JSON."),
    ] = Format.TEXT,
) -> None:
    """Print every process, file and change of hosts that a run needs. Changes nothing; keys appear by path only."""
    testbed = load(file)
    planned = plan(testbed)
    match format:
        case Format.TEXT:
            text = as_text(planned)
        case Format.JSON:
            text = as_json(planned)
        case Format.SLURM:
            text = batch_script(testbed, planned)
        case Format.KUBERNETES:
            text = manifests(testbed, planned)
    typer.echo(text, nl=False)
