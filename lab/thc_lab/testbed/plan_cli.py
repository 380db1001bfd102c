"""The `thc testbed plan` command."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from byteps_thc.errors import ConfigurationError
from thc_lab.testbed.cli import DescriptionFile
from thc_lab.testbed.kubernetes import manifests
from thc_lab.testbed.plan import plan
from thc_lab.testbed.plan_environment import private_lines
from thc_lab.testbed.plan_text import as_json, as_text
from thc_lab.testbed.reading import load
from thc_lab.testbed.slurm import batch_script


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
    environment_file: Annotated[
        Path | None,
        typer.Option(help="Write the values of [training.environment] there, a new file for this user alone."),
    ] = None,
) -> None:
    """Print every process, file and change of hosts that a run needs. Keys appear by path, secrets by name only."""
    testbed = load(file)
    if environment_file is not None:
        _write_private(environment_file, private_lines(testbed))
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


def _write_private(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        hint = "; a file with secrets is always a new one: remove it" if isinstance(error, FileExistsError) else ""
        raise ConfigurationError(f"--environment-file {path}: {error.strerror}{hint}") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
