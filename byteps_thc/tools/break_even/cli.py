"""The `thc break-even` command."""

from __future__ import annotations

import json as json_format
import os
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from byteps_thc.compressor import SCALE_BITS, SCALE_GROUP
from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.threads import default_threads
from byteps_thc.tools.break_even import model
from byteps_thc.tools.break_even.comparison import Comparison
from byteps_thc.tools.break_even.quantities import parse_bandwidth_bps, parse_parameters, show_parameters
from byteps_thc.tools.break_even.speed import HostSpeed, measure
from byteps_thc.tools.consoles import table_console
from byteps_thc.worker_limits import require_packet_workers

_BANDWIDTHS = ("100M", "250M", "500M", "1G", "2.5G", "5G", "10G", "25G", "40G", "50G", "100G")
_MOST_SECONDS = 600

Engine = Literal["collective", "network"]


def break_even(
    parameters: Annotated[str, typer.Option(help="Parameters of the model: 25M, 7B.")] = "25M",
    workers: Annotated[int, typer.Option(help="Ranks that average.")] = 4,
    engine: Annotated[Engine, typer.Option(help="THC between the ranks, or with parameter servers or a switch.")] = (
        "collective"
    ),
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(metavar="BITS/S", help="Of a link: 100M,10G; may be repeated. Default: 100M to 100G."),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of a rank's kernels. Default: cores, at most 8.")] = None,
    seconds: Annotated[float, typer.Option(help="About how long to measure.")] = 4.0,
    plot: Annotated[Path | None, typer.Option(help="Also draw the times to this file (needs matplotlib).")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the formulas as well.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say below which link bandwidth THC is faster than bf16 and fp32, for the speed of this host's processor."""
    count = parse_parameters(parameters)
    bandwidths_bps = sorted(
        {parse_bandwidth_bps(part) for text in bandwidth or _BANDWIDTHS for part in text.split(",")}
    )
    cores = len(os.sched_getaffinity(0))
    threads = default_threads() if threads is None else threads
    _check(workers=workers, threads=threads, cores=cores, seconds=seconds)
    packed_sums = engine == "collective"
    if not packed_sums:
        require_packet_workers(workers)
    resolved = ThcConfig().resolve(workers, packed_sums=packed_sums)
    with Console(stderr=True).status(f"Measuring for about {seconds:g} s ..."):
        speed = measure(resolved, packed_sums=packed_sums, threads=threads, parameters=count, seconds=seconds)
    comparison = compare(resolved, engine, speed, count, bandwidths_bps)
    if json:
        typer.echo(json_format.dumps({"engine": engine, "workers": workers} | comparison.as_json()))
    else:
        _print(comparison, speed, workers, engine, explain)
    if plot is not None:
        comparison.save_plot(plot)


def compare(
    resolved: ResolvedConfig, engine: Engine, speed: HostSpeed, parameters: int, bandwidths_bps: list[float]
) -> Comparison:
    """Return what THC with an engine is compared with."""
    bits, workers = resolved.table.bits, resolved.workers
    if engine == "collective":
        scale_bits = 0.0 if resolved.down is None else SCALE_BITS / SCALE_GROUP
        thc = model.thc_collective(workers, bits, resolved.sum_bits + scale_bits, speed.compute_s(sums=True))
    else:
        thc = model.thc_network(bits, resolved.value_bits, speed.compute_s(sums=False))
    others = (model.fp32_ring(workers), model.bf16_ring(workers, speed.bf16_s or 0.0))
    return Comparison(parameters, thc, others, bandwidths_bps)


def _check(*, workers: int, threads: int, cores: int, seconds: float) -> None:
    if workers < 2:
        raise ConfigurationError(f"--workers must be at least 2, not {workers}")
    if not 1 <= threads <= cores:
        raise ConfigurationError(f"--threads must be in 1 .. {cores}, the cores usable here, not {threads}")
    if not 0 < seconds <= _MOST_SECONDS:
        raise ConfigurationError(f"--seconds must be above 0 and at most {_MOST_SECONDS}, not {seconds:g}")


def _print(comparison: Comparison, speed: HostSpeed, workers: int, engine: Engine, explain: bool) -> None:
    console = table_console()
    if explain:
        console.print(model.__doc__, highlight=False, markup=False)
    bf16 = "not measured, since torch is not installed" if speed.bf16_s is None else f"{speed.bf16_s * 1e9:.2f}"
    threads = "1 thread" if speed.threads == 1 else f"{speed.threads} threads"
    console.print(
        f"This host, {threads}, ns per parameter: encode {speed.encode_s * 1e9:.2f}, "
        f"sum {speed.sum_s * 1e9:.2f}, decode {speed.decode_s * 1e9:.2f}; bf16 and back {bf16}.",
        soft_wrap=True,
    )
    thc = comparison.thc
    console.print(
        f"{show_parameters(comparison.parameters)} parameters, {workers} workers, {engine} engine: bytes per "
        f"parameter on the busier direction of a link: "
        + ", ".join(f"{scheme.name} {scheme.link_bytes:.3g}" for scheme in (*comparison.others, thc)),
        soft_wrap=True,
    )
    console.print("Communication of a step, everything overlaps .. nothing overlaps:")
    console.print(comparison.table())
    for verdict in comparison.verdicts():
        console.print(verdict, soft_wrap=True)
