"""The `thc compare` command."""

import json as json_format
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.limits import MAX_RANKS, require_packet_workers
from byteps_thc._cli.compare import WORKERS
from byteps_thc._cli.consoles import table_console
from byteps_thc._cli.quantities import parse_bandwidth_bps, parse_parameters, show_parameters

_BANDWIDTHS = ("100M", "1G", "10G")
_MOST_SECONDS = 600
_DEFAULT_PARAMETERS = "25M"
_MOST_SERVERS = 16
_STEPS, _LEAST_STEPS = 20, WORKERS + 3


def compare(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[-- ARG...]", help="Of the script.")] = None,
    script: Annotated[
        Path | None, typer.Option(help="Run this training; take its gradients and the time of its step.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help=f"With --script: steps to run, {_STEPS} by default. The last {WORKERS} stand for workers."),
    ] = None,
    parameters: Annotated[
        str | None, typer.Option(help="Of the model: 25M, 7B, 1e9. Default: of the script's, or 25M.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Ranks that average. Default: 4.")] = None,
    ranks_per_host: Annotated[int, typer.Option(help="Ranks that share a host's cores and link.")] = 1,
    cores: Annotated[
        float | None, typer.Option(help="Of a rank; below 1: shared. Default: the cores here / --ranks-per-host.")
    ] = None,
    servers: Annotated[
        int, typer.Option(help="Also through as many thc-ps, each with a link as fast as a host's.")
    ] = 0,
    compute_ms: Annotated[
        float | None, typer.Option(help="A step without communication. Default: as --script measures, or 0.")
    ] = None,
    bandwidth: Annotated[
        list[str] | None, typer.Option(metavar="BITS/S", help="Of a host's link: 100M,10G; may be repeated.")
    ] = None,
    device: Annotated[bool, typer.Option("--device", help="Measure the times on this host's GPU.")] = False,
    seconds: Annotated[float, typer.Option(help="About how long to measure, beside the start.")] = 8.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare ways to average gradients, your own or made here: bits, error, time, and below which bandwidth THC pays.

    The script's own arguments follow --: thc compare --script train.py --steps 50 -- --model large.
    """
    bandwidths_bps = sorted({parse_bandwidth_bps(one) for text in bandwidth or _BANDWIDTHS for one in text.split(",")})
    _require("--seconds", seconds, 0 < seconds <= _MOST_SECONDS, f"above 0 and at most {_MOST_SECONDS}")
    _require("--compute-ms", compute_ms or 0, 0 <= (compute_ms or 0) < float("inf"), "a time, 0 or more")
    cores = len(os.sched_getaffinity(0)) / max(1, ranks_per_host) if cores is None else cores
    _require("--cores", cores, 0 < cores < float("inf"), "above 0")
    count = None if parameters is None else parse_parameters(parameters)
    if script is None and arguments:
        raise ConfigurationError(
            f"unexpected arguments: {' '.join(arguments)}. Pass a script's arguments as --script SCRIPT -- ARGUMENTS"
        )
    if script is None and steps is not None:
        raise ConfigurationError("--steps is for --script: pass a script, or omit --steps")
    steps = _STEPS if steps is None else steps
    least = f"at least {_LEAST_STEPS}, of which the last {WORKERS} stand for workers"
    _require("--steps", steps, steps >= _LEAST_STEPS, least)
    # Before PyTorch loads.
    ranks = _workers(
        workers or (max(4, 2 * ranks_per_host) if script is None else WORKERS), ranks_per_host, servers, device
    )

    import byteps_thc._base.needs_torch  # noqa: F401
    from byteps_thc._cli.compare import gradients as source
    from byteps_thc._cli.compare.measure import Layout, measure
    from byteps_thc._cli.compare.report import Report

    found = None
    if script is not None:
        found, compute_s = source.of_script(script, arguments or [], steps)
        compute_ms = compute_s * 1e3 if compute_ms is None else compute_ms
        count = count or sum(value.numel() for value in found[0].values())
    count = count or parse_parameters(_DEFAULT_PARAMETERS)
    layout = Layout(count, ranks, ranks_per_host, cores, servers, device)
    with Console(stderr=True).status(f"Measuring for about {3 * seconds:.0f} s ..."):
        ways = measure(layout, found, seconds)
    report = Report(ways, bandwidths_bps, (compute_ms or 0) * 1e-3)
    if json:
        typer.echo(json_format.dumps(report.as_json()))
    else:
        console = table_console()
        own = "the GPU here" if device else f"{layout.cores:g} cores a rank"
        console.print(f"{show_parameters(layout.parameters)} parameters, {layout.ranks} ranks, {own}.")
        for part in (report.table(), report.points_table(), *report.notes()):
            console.print(part)


def _workers(ranks: int, ranks_per_host: int, servers: int, device: bool) -> int:
    _require("--workers", ranks, 2 <= ranks <= MAX_RANKS, f"in 2 .. {MAX_RANKS}")
    hosts_fit = ranks_per_host >= 1 and ranks % ranks_per_host == 0 and ranks > ranks_per_host
    what = f"a divisor of the {ranks} workers, for two hosts or more"
    _require("--ranks-per-host", ranks_per_host, hosts_fit, what)
    _require("--servers", servers, 0 <= servers <= _MOST_SERVERS, f"in 0 .. {_MOST_SERVERS}")
    if servers:
        require_packet_workers(ranks)
    if servers and device:
        raise ConfigurationError(
            "--servers and --device exclude each other: omit --servers, as only ranks are measured on a GPU"
        )
    return ranks


def _require(option: str, value: float, fits: bool, allowed: str) -> None:
    if not fits:
        raise ConfigurationError(f"{option} must be {allowed}, not {value:g}")
