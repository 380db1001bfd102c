"""The `thc demo` command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from byteps_thc._cli.bfloat16 import do_without_amx_if_it_crashes
from byteps_thc._cli.consoles import table_console
from thc_lab.demo import report
from thc_lab.demo.launcher import StartNetwork, run_demo
from thc_lab.demo.network import start_servers
from thc_lab.demo.settings import DemoSettings, Progress, RunResult
from thc_lab.demo.signals import ended_in_order

DEFAULTS = DemoSettings()
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
    workers: Annotated[int, typer.Option(help="Worker processes.")] = DEFAULTS.workers,
    steps: Annotated[int, typer.Option(help="Training steps of each of the three runs.")] = DEFAULTS.steps,
    batch_size: Annotated[int, typer.Option(help="Sequences per worker and step.")] = DEFAULTS.batch_size,
    bits: Annotated[int, typer.Option(help="Bits of a code: 1 to 8.")] = DEFAULTS.bits,
    granularity: Annotated[str, typer.Option(help="Largest table value, or 'auto'.")] = "auto",
    p: Annotated[float | None, typer.Option(help="Fraction of the coordinates that is clamped.")] = None,
    loss_tolerant: Annotated[
        bool,
        typer.Option("--loss-tolerant", help="Give lost packets up after a timeout, as in the paper."),
    ] = False,
    drop: Annotated[float, typer.Option(help="Probability with which thc-ps loses a packet, each way.")] = 0.0,
    backend: Annotated[Backend, typer.Option(help="Packet I/O: kernel UDP, or DPDK over memif.")] = "udp",
    servers: Annotated[int, typer.Option(help="thc-ps processes to spread the gradient over.")] = DEFAULTS.servers,
    seed: Annotated[int, typer.Option(help="Selects initial parameters, batches and rounding.")] = DEFAULTS.seed,
    out: Annotated[Path, typer.Option(help="Folder for plots and raw numbers.")] = Path("demo-out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the raw numbers instead of the table.")] = False,
    check: Annotated[bool, typer.Option(help="Fail when THC misses its loss or traffic targets.")] = True,
) -> None:
    """Train a small GPT three ways (uncompressed fp32, Uniform THC, THC) and compare loss, bytes and time."""
    settings = DemoSettings(
        workers=workers,
        steps=steps,
        batch_size=batch_size,
        bits=bits,
        granularity=parse_granularity(granularity),
        p=p,
        loss_tolerant=loss_tolerant,
        drop=drop,
        backend=backend,
        servers=servers,
        seed=seed,
    )
    train_and_report(settings, start_servers, f"{servers} thc-ps", out=out, as_json=as_json, check=check)


def train_and_report(
    settings: DemoSettings, start_network: StartNetwork, aggregators: str, *, out: Path, as_json: bool, check: bool
) -> None:
    """Run the demo on the network that start_network makes, whose aggregators are called that, and show the results."""
    show = Show(out, as_json=as_json, check=check)
    with ended_in_order():
        show.run(settings, aggregators, lambda on_progress: run_demo(settings, on_progress, start_network))


class Show:
    """What a demo prints and writes. ConfigurationError when it could not, before anything is trained.

    as_json: print the raw numbers instead of a table. check: end with exit code 1 when THC misses its targets.
    """

    def __init__(self, out: Path, *, as_json: bool, check: bool) -> None:
        report.make_folder(out)
        self._console = Console(stderr=as_json)
        self._out, self._as_json, self._check = out, as_json, check

    def say(self, text: str) -> None:
        """Print a sentence."""
        self._console.print(text, soft_wrap=True)

    def run(
        self,
        settings: DemoSettings,
        aggregators: str,
        train: Callable[[Callable[[Progress], None]], list[RunResult]],
    ) -> None:
        """Say what is trained, train, and show the results. train: gets what is to be called after every step."""
        self.say(
            f"{settings.workers} workers and {aggregators} train a character-level GPT on the Python standard "
            f"library's source, {settings.steps} steps three times, from the same start and with the same batches."
        )
        if note := do_without_amx_if_it_crashes():
            self.say(f"The workers have {note}.")
        live = report.LiveProgress(self._console, settings)
        with live.shown():
            results = train(live.update)
        raw_numbers = report.as_json(settings, aggregators, results)
        if self._as_json:
            print(json.dumps(raw_numbers))
        else:
            table_console().print(report.results_table(results))
        files = report.write_files(self._out, raw_numbers, results)
        self.say("Written: " + ", ".join(str(path) for path in files))
        missed = report.shortcomings(results, settings)
        for shortcoming in missed:
            self.say(f"[bold red]missed:[/] {shortcoming}")
        if missed and self._check:
            raise typer.Exit(1)
