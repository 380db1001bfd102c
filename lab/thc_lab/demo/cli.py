"""The `thc demo` command."""

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, cast

import typer
from rich.console import Console

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.limits import Bits
from byteps_thc._cli.consoles import table_console
from thc_lab.bfloat16 import do_without_amx_if_it_crashes
from thc_lab.demo import report
from thc_lab.demo.gain import GAIN
from thc_lab.demo.launcher import StartNetwork, started_network, train
from thc_lab.demo.links import NO_LINKS, Links
from thc_lab.demo.network import start_servers
from thc_lab.demo.settings import (
    DEFAULT_SCHEMES,
    DEFAULTS,
    LINK_MBIT,
    MAX_SERVERS,
    DemoSettings,
    Progress,
    RunResult,
    Scheme,
    schemes_of,
)
from thc_lab.demo.signals import ended_in_order
from thc_lab.demo.view import View

Backend = Literal["udp", "dpdk"]


def parse_granularity(text: str) -> int | Literal["auto"]:
    """Read --granularity."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter("an integer or 'auto'") from None


def demo(
    schemes: Annotated[
        str | None,
        typer.Option(
            help=f"Runs, with commas: {', '.join(Scheme)}. Default: {','.join(DEFAULT_SCHEMES['udp'])}; with DPDK "
            f"{','.join(DEFAULT_SCHEMES['dpdk'])}."
        ),
    ] = None,
    link_mbit: Annotated[
        float | None,
        typer.Option(
            help=f"Mb/s of each worker's link, each direction; needs root. 0: loopback. Default: {LINK_MBIT:g}, with "
            "DPDK 0."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Worker processes, each on a host of its own.")] = DEFAULTS.workers,
    steps: Annotated[int, typer.Option(help="Training steps of each run.")] = DEFAULTS.steps,
    batch_size: Annotated[int, typer.Option(help="Sequences per worker and step.")] = DEFAULTS.batch_size,
    bits: Annotated[int, typer.Option(min=1, max=8, help="Bits of a code.")] = DEFAULTS.bits,
    granularity: Annotated[str, typer.Option(help="With thc-ps: largest table value, or 'auto'.")] = "auto",
    p: Annotated[float | None, typer.Option(help="With thc-ps: fraction of the coordinates that is clamped.")] = None,
    loss_tolerant: Annotated[
        bool,
        typer.Option("--loss-tolerant", help="Give lost packets up after a timeout, as in the paper."),
    ] = False,
    drop: Annotated[float, typer.Option(help="Probability with which thc-ps loses a packet, each way.")] = 0.0,
    backend: Annotated[Backend, typer.Option(help="Packet I/O of thc-ps: kernel UDP, or DPDK over memif.")] = "udp",
    servers: Annotated[
        int | None, typer.Option(help="thc-ps processes. Default: one on each worker's host; with DPDK 1.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Selects initial parameters, batches and rounding.")] = DEFAULTS.seed,
    out: Annotated[Path, typer.Option(help="Folder for plots and raw numbers.")] = Path("demo-out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the raw numbers instead of the table.")] = False,
    check: Annotated[bool, typer.Option(help="Fail when THC misses its loss or traffic targets.")] = True,
) -> None:
    """Train a small GPT with fp32, bf16 and THC over links of 100 Mb/s, and compare loss, time and bytes."""
    if backend == "dpdk" and link_mbit:
        raise ConfigurationError("--backend dpdk goes through shared memory, which has no links: omit --link-mbit")
    settings = replace(
        DEFAULTS,
        schemes=schemes_of(schemes, backend),
        link_mbit=(LINK_MBIT if backend == "udp" else 0.0) if link_mbit is None else link_mbit,
        links_required=link_mbit is not None,
        workers=workers,
        steps=steps,
        batch_size=batch_size,
        bits=cast(Bits, bits),  # the schemes' settings check it
        granularity=parse_granularity(granularity),
        p=p,
        loss_tolerant=loss_tolerant,
        drop=drop,
        backend=backend,
        servers=(min(workers, MAX_SERVERS) if backend == "udp" else 1) if servers is None else servers,
        seed=seed,
    )
    aggregators = "a thc-ps on each one's host" if settings.servers == workers else f"{settings.servers} thc-ps"
    show = Show(out, as_json=as_json, check=check, view=GAIN)
    train_and_report(settings, start_servers, aggregators, show)


def train_and_report(settings: DemoSettings, start_network: StartNetwork, aggregators: str, show: "Show") -> None:
    """Run the demo on the network that start_network makes, whose aggregators are called that, and show the results."""
    with ended_in_order(), started_network(settings, start_network) as network:
        show.run(settings, aggregators, functools.partial(train, settings, network), network.links())


class Show:
    """Output of a demo. Raises ConfigurationError before any training if `out` cannot be written.

    as_json: print the raw numbers instead of a table. check: end with exit code 1 when THC misses its targets.
    """

    def __init__(self, out: Path, *, as_json: bool, check: bool, view: View) -> None:
        report.make_folder(out)
        self._console = Console(stderr=as_json)
        self._out, self._as_json, self._check, self._view = out, as_json, check, view

    def say(self, text: str) -> None:
        """Print a sentence."""
        self._console.print(text, soft_wrap=True)

    def run(
        self,
        settings: DemoSettings,
        aggregators: str,
        train: Callable[[Callable[[Progress], None]], list[RunResult]],
        links: Links = NO_LINKS,
    ) -> None:
        """Describe the training, train, and show the results.

        train: gets a function to call after every step. links: between the workers.
        """
        self.say(
            f"{settings.workers} workers and {aggregators} train a character-level GPT on the Python standard "
            f"library's source, {settings.steps} steps with each of {len(settings.schemes)} schemes, from the same "
            "start and with the same batches."
        )
        if links.sentence:
            self.say(links.sentence)
        if note := do_without_amx_if_it_crashes():
            self.say(f"The workers have {note}.")
        live = report.LiveProgress(self._console, settings)
        with live.shown():
            results = train(live.update)
        raw_numbers = report.as_json(settings, aggregators, links.sentence, results)
        if self._as_json:
            print(json.dumps(raw_numbers))
        else:
            table_console().print(self._view.table(results))
        files = report.write_files(self._out, raw_numbers, lambda folder: self._view.plots(folder, results, links))
        self.say("Written: " + ", ".join(str(path) for path in files))
        if gained := self._view.sentence(results, links):
            self.say(gained)
        missed = report.shortcomings(results, settings)
        for shortcoming in missed:
            self.say(f"[bold red]missed:[/] {shortcoming}")
        if missed and self._check:
            raise typer.Exit(1)
