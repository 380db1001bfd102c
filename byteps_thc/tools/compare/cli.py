"""The `thc compare` command."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from byteps_thc.errors import ConfigurationError
from byteps_thc.tools.break_even.quantities import parse_bandwidth_bps
from byteps_thc.tools.consoles import table_console

_BANDWIDTHS = ("100M", "1G", "10G")
_MOST_SECONDS = 600


def compare(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[-- ARG...]", help="Of the script.")] = None,
    grads: Annotated[
        list[Path] | None, typer.Option(help="A worker's gradients, by torch.save; a file for each, or a list in one.")
    ] = None,
    script: Annotated[Path | None, typer.Option(help="Run this training, and take its gradients.")] = None,
    steps: Annotated[int, typer.Option(help="With --script: steps to run; the last --workers of them are taken.")] = 20,
    workers: Annotated[int, typer.Option(help="With --script: steps that stand for as many workers.")] = 4,
    bandwidth: Annotated[
        list[str] | None, typer.Option(metavar="BITS/S", help="Of a link: 100M,10G; may be repeated.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="About how long to measure times.")] = 6.0,
    timeout_s: Annotated[float, typer.Option(help="With --script: how long it may take.")] = 600.0,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw errors over bits to this file (needs matplotlib).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare ways to average your own gradients: bytes, error, time, and what to choose.

    The script's own arguments follow --: thc compare --script train.py --steps 50 -- --model large.
    """
    bandwidths_bps = sorted(
        {parse_bandwidth_bps(part) for text in bandwidth or _BANDWIDTHS for part in text.split(",")}
    )
    if not 0 < seconds <= _MOST_SECONDS:
        raise ConfigurationError(f"--seconds must be above 0 and at most {_MOST_SECONDS}, not {seconds:g}")
    if timeout_s <= 0:
        raise ConfigurationError(f"--timeout-s must be above 0, not {timeout_s:g}")
    if (grads is None) == (script is None):
        raise ConfigurationError("give --grads FILE for each worker, or --script train.py")
    if script is None and arguments:
        raise ConfigurationError(f"{' '.join(arguments)}: arguments are for a --script; a file takes --grads before it")

    from byteps_thc.tools.compare import gradients as source
    from byteps_thc.tools.compare.measure import measure
    from byteps_thc.tools.compare.report import Report

    if script is not None:
        found = source.of_script(script, arguments or [], steps=steps, workers=_checked(workers), timeout_s=timeout_s)
    else:
        found = source.of_files(grads or [])
    with Console(stderr=True).status(f"Measuring for about {seconds:g} s ..."):
        rows = list(measure(found, seconds))
    report = Report(sum(value.numel() for value in found[0].values()), len(found), rows, bandwidths_bps)
    if json:
        typer.echo(json_format.dumps(report.as_json()))
    else:
        console = table_console()
        console.print(report.table())
        for line in (*report.notes(), *report.advice()):
            console.print(line, soft_wrap=True)
    if plot is not None:
        report.save_plot(plot)


def _checked(workers: int) -> int:
    if workers < 2:
        raise ConfigurationError(f"--workers must be at least 2, not {workers}")
    return workers
