"""The `thc break-even` command."""

from __future__ import annotations

import json as json_format
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.rank_settings import RankSettings
from byteps_thc.threads import default_threads
from byteps_thc.tools.break_even import model
from byteps_thc.tools.break_even.comparison import Comparison
from byteps_thc.tools.break_even.costs import Costs
from byteps_thc.tools.break_even.device_speed import buckets_of, device_speed
from byteps_thc.tools.break_even.quantities import parse_bandwidth_bps, parse_parameters, show_parameters
from byteps_thc.tools.break_even.speed import measure
from byteps_thc.tools.break_even.transport_speed import measure_transport
from byteps_thc.tools.consoles import table_console
from byteps_thc.transport.link_bytes import link_bytes
from byteps_thc.worker_limits import require_packet_workers

_BANDWIDTHS = ("100M", "250M", "500M", "1G", "2.5G", "5G", "10G", "25G", "40G", "50G", "100G")
_MOST_SECONDS = 600

Engine = Literal["collective", "network"]


def break_even(
    parameters: Annotated[str, typer.Option(help="Parameters of the model: 25M, 7B.")] = "25M",
    workers: Annotated[int, typer.Option(help="Ranks that average.")] = 4,
    engine: Annotated[
        Engine, typer.Option(help="Who averages. collective: the ranks; network: servers or a switch.")
    ] = ("collective"),
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(metavar="BITS/S", help="Of a link: 100M,10G; may be repeated. Default: 100M to 100G."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of a rank's kernels. Default: cores / ranks of a host, at most 8.")
    ] = None,
    ranks_per_host: Annotated[
        int | None, typer.Option(help="Ranks that share this host's cores. Default: --gpus-per-node.")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(help="Ranks of a node, which share its cards' bandwidth.")] = 1,
    device: Annotated[
        bool, typer.Option("--device", help="Of a GPU: measured on this one, or as recorded on an H100.")
    ] = False,
    bucket_mb: Annotated[float, typer.Option(help="With --device: DDP's bucket_cap_mb.")] = 25.0,
    host_ms: Annotated[float | None, typer.Option(help="With --device: the host's part of a bucket.")] = None,
    kernel_ps: Annotated[float | None, typer.Option(help="With --device: the kernels' time for a parameter.")] = None,
    bf16_ms: Annotated[float | None, typer.Option(help="With --device: what the bf16 hook takes for a bucket.")] = None,
    seconds: Annotated[float, typer.Option(help="About how long to measure.")] = 4.0,
    plot: Annotated[Path | None, typer.Option(help="Also draw the times to this file (needs matplotlib).")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the formulas as well.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say below which link bandwidth THC is faster than bf16 and fp32, for this host's processor, or for a GPU."""
    count = parse_parameters(parameters)
    bandwidths_bps = sorted(
        {parse_bandwidth_bps(part) for text in bandwidth or _BANDWIDTHS for part in text.split(",")}
    )
    cores = len(os.sched_getaffinity(0))
    _check(workers=workers, seconds=seconds)
    _check_nodes(workers=workers, gpus_per_node=gpus_per_node, device=device, engine=engine)
    ranks_per_host = gpus_per_node if ranks_per_host is None else ranks_per_host
    if not 1 <= ranks_per_host <= workers:
        raise ConfigurationError(f"--ranks-per-host must be in 1 .. {workers}, the workers, not {ranks_per_host}")
    threads = default_threads(ranks_per_host) if threads is None else threads
    if not 1 <= threads <= cores:
        raise ConfigurationError(f"--threads must be in 1 .. {cores}, the cores usable here, not {threads}")
    settings: RankSettings | ResolvedConfig
    if engine == "collective":
        settings = RankSettings.of(ThcConfig(), workers)
    else:
        require_packet_workers(workers)
        settings = ThcConfig().resolve(workers)
    if device:
        buckets = buckets_of(count, bucket_mb)
        with _measuring(seconds):
            gpu = device_speed(bucket_mb, seconds).given(host_ms=host_ms, kernel_ps=kernel_ps, bf16_ms=bf16_ms)
        costs = Costs.of_device(gpu, count, buckets, gpus_per_node)
    elif told := [name for name, value in _device_options(host_ms, kernel_ps, bf16_ms) if value is not None]:
        raise ConfigurationError(f"{', '.join(told)}: a GPU's, so give --device, too")
    else:
        with _measuring(seconds):
            share_s = 0.8 * seconds
            host = measure(settings, threads=threads, parameters=count, seconds=share_s)
            transport = measure_transport(seconds - share_s)
        crowd = max(1.0, ranks_per_host * threads / cores)
        costs = Costs.of_host(host, transport, gpus_per_node, crowd)
    comparison = compare(settings, costs, count, bandwidths_bps, gpus_per_node)
    if json:
        about = {"engine": engine, "workers": workers, "gpus_per_node": gpus_per_node, "costs": costs.source}
        typer.echo(json_format.dumps(about | comparison.as_json()))
    else:
        _print(comparison, costs, workers, engine, gpus_per_node, explain)
    if plot is not None:
        comparison.save_plot(plot)


def compare(
    settings: RankSettings | ResolvedConfig,
    costs: Costs,
    parameters: int,
    bandwidths_bps: list[float],
    gpus_per_node: int = 1,
) -> Comparison:
    """Return what THC is compared with: among ranks, or with servers."""
    workers = settings.ranks if isinstance(settings, RankSettings) else settings.workers
    others: Sequence[model.Scheme]
    if gpus_per_node > 1:
        nodes = [gpus_per_node] * (workers // gpus_per_node)
        sent = link_bytes(nodes, settings.config, ring=costs.on_device)
        thc, others = model.of_nodes(sent, bf16_s=costs.bf16_s, flat_s=costs.flat_s, two_levels_s=costs.two_levels_s)
    else:
        if isinstance(settings, RankSettings):
            thc = model.thc_collective(workers, settings.bits, settings.down.bits, costs.flat_s)
        else:
            thc = model.thc_network(settings.table.bits, settings.value_bits, costs.flat_s)
        others = (model.fp32_ring(workers), model.bf16_ring(workers, costs.bf16_s))
    # A node's bytes are those of all its ranks, each of which has a core, or waits for one.
    reduce_s, exchange_s = (byte_s / gpus_per_node for byte_s in (costs.transport.reduce_s, costs.transport.exchange_s))
    carried = [other.carried(exchange_s if other.name == model.FLAT else reduce_s, costs.crowd) for other in others]
    return Comparison(parameters, thc.carried(exchange_s, costs.crowd), carried, bandwidths_bps)


@contextmanager
def _measuring(seconds: float) -> Iterator[None]:
    with Console(stderr=True).status(f"Measuring for about {seconds:g} s ..."):
        yield


def _device_options(
    host_ms: float | None, kernel_ps: float | None, bf16_ms: float | None
) -> list[tuple[str, float | None]]:
    return [("--host-ms", host_ms), ("--kernel-ps", kernel_ps), ("--bf16-ms", bf16_ms)]


def _check_nodes(*, workers: int, gpus_per_node: int, device: bool, engine: Engine) -> None:
    if gpus_per_node < 1 or workers % gpus_per_node or workers // gpus_per_node < 2:
        raise ConfigurationError(
            f"--gpus-per-node must leave two equal nodes or more of the {workers} workers, not {gpus_per_node}"
        )
    if engine == "network" and (device or gpus_per_node > 1):
        raise ConfigurationError("--device and --gpus-per-node are for ranks that sum themselves: --engine collective")


def _check(*, workers: int, seconds: float) -> None:
    if workers < 2:
        raise ConfigurationError(f"--workers must be at least 2, not {workers}")
    if not 0 < seconds <= _MOST_SECONDS:
        raise ConfigurationError(f"--seconds must be above 0 and at most {_MOST_SECONDS}, not {seconds:g}")


def _print(
    comparison: Comparison, costs: Costs, workers: int, engine: Engine, gpus_per_node: int, explain: bool
) -> None:
    console = table_console()
    if explain:
        console.print(model.__doc__, highlight=False, markup=False)
    console.print(costs.source, soft_wrap=True)
    thc = comparison.thc
    nodes = "" if gpus_per_node == 1 else f" on {workers // gpus_per_node} nodes"
    whose = "a link" if gpus_per_node == 1 else "a node's cards"
    console.print(
        f"{show_parameters(comparison.parameters)} parameters, {workers} workers{nodes}, {engine} engine: bytes per "
        f"parameter on the busier direction of {whose}: "
        + ", ".join(f"{scheme.name} {scheme.link_bytes:.3g}" for scheme in (*comparison.others, thc)),
        soft_wrap=True,
    )
    console.print("Communication of a step, everything overlaps .. nothing overlaps:")
    console.print(comparison.table())
    for verdict in comparison.verdicts():
        console.print(verdict, soft_wrap=True)
