"""Output of the demos: a progress bar while they run, then a table, two charts and the raw numbers."""

import dataclasses
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from byteps_thc._base.errors import ConfigurationError
from thc_lab.demo import settings as demo
from thc_lab.demo.checked_session import COMPARED
from thc_lab.demo.gain import excess_loss, reference_of
from thc_lab.demo.links import Links
from thc_lab.demo.settings import DemoSettings, RunResult, Scheme, ring_share
from thc_lab.demo.view import View

#: The compressed run may end with a validation loss this much above the uncompressed one.
LOSS_TOLERANCE = 0.01


class LiveProgress:
    """One bar per run with the losses and the speed; on something else than a terminal, a line now and then."""

    def __init__(self, console: Console, settings: DemoSettings) -> None:
        self._console = console
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks = {
            scheme: self._bars.add_task(scheme.label, total=settings.steps, start=False, note="")
            for scheme in settings.schemes
        }
        self._validation = ""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bars while the context lasts."""
        with self._bars:
            yield

    def update(self, progress: demo.Progress) -> None:
        """Take in one finished step."""
        task = self._tasks[progress.scheme]
        if progress.step == 1:
            self._bars.start_task(task)
            self._validation = ""
        if progress.validation_loss is not None:
            self._validation = f", validation {progress.validation_loss:.3f} (a part)"
        speed = self._bars.tasks[task].speed
        note = f"loss {progress.training_loss:.3f}{self._validation}" + (f", {speed:.1f} steps/s" if speed else "")
        self._bars.update(task, completed=progress.step, note=note)
        if progress.validation_loss is not None and not self._console.is_terminal:
            self._console.print(f"{progress.scheme.label}, step {progress.step}: {note}", soft_wrap=True)


def median(values: list[float]) -> float:
    """Median, 0 of nothing."""
    return statistics.median(values) if values else 0.0


def mean_nmse(result: RunResult) -> float | None:
    """Mean over the steps at which it was measured; None without any."""
    return statistics.fmean(value for _, value in result.nmse) if result.nmse else None


def results_table(results: list[RunResult]) -> Table:
    """One column per run."""
    reference = results[0]
    table = Table(
        title="Result of training; cost of averaging the gradient, per step and worker",
        caption="Validation: of all held-out text here, of a part of it in progress and chart",
    )
    table.add_column("", no_wrap=True)
    for result in results:
        table.add_column(result.scheme.label, justify="right", no_wrap=True)

    def row(name: str, cells: list[str]) -> None:
        table.add_row(name, *cells)

    def kib(size_bytes: float, reference_bytes: float) -> str:
        fewer = f" ({reference_bytes / size_bytes:.2f}x)" if size_bytes < reference_bytes else ""
        return f"{size_bytes / 1024:,.1f}{fewer}"

    row("validation loss, all (nats)", [f"{r.final_validation_loss:.4f}" for r in results])
    row("  against fp32", [f"{100 * excess_loss(r, reference):+.2f} %" for r in results])
    row("KiB up, payload", [kib(r.traffic.payload_up, reference.traffic.payload_up) for r in results])
    if reference.traffic.wire_up:
        row("KiB up, with headers", [kib(r.traffic.wire_up, reference.traffic.wire_up) for r in results])
    row("KiB down, payload", [kib(r.traffic.payload_down, reference.traffic.payload_down) for r in results])
    if reference.traffic.wire_down:
        row("KiB down, with headers", [kib(r.traffic.wire_down, reference.traffic.wire_down) for r in results])
    for name, field in (("encode", "encode_ms"), ("communicate", "communicate_ms"), ("decode", "decode_ms")):
        row(f"{name} (median ms)", [f"{median(getattr(r, field)):.2f}" for r in results])
    row("all of it (median ms)", [f"{median(r.average_ms):.2f}" for r in results])
    exact = {True: "0", False: "not measured"}
    row("NMSE of the average", [exact[r is reference] if (n := mean_nmse(r)) is None else f"{n:.4f}" for r in results])
    row("workers bit-identical", ["yes" if r.workers_agree else "no" for r in results])
    if any(COMPARED in result.counters for result in results):
        row("sums equal to thc-ps's", [compared_cell(result) for result in results])
    row("training time (s)", [f"{r.wall_s:.1f}" for r in results])
    return table


def compared_cell(result: RunResult) -> str:
    """How many results were compared with thc-ps's; a difference would have ended the run."""
    return f"all {result.counters[COMPARED]}" if COMPARED in result.counters else ""


def shortcomings(results: list[RunResult], settings: DemoSettings) -> list[str]:
    """Return the targets that THC missed in this demo, in words; empty if none.

    results: of all runs.
    settings: of the demo, with its tolerances.
    """
    reference = reference_of(results)
    found: list[str] = []
    for thc in results:
        if thc.scheme not in (Scheme.THC, Scheme.THC_RANKS):
            continue
        excess = excess_loss(thc, reference)
        if settings.judge_loss and not excess <= LOSS_TOLERANCE:
            found.append(
                f"the last validation loss of {thc.scheme.label} is {100 * excess:.2f} % above "
                f"{reference.scheme.label} (limit {100 * LOSS_TOLERANCE:g} %)"
            )
        found += [
            f"{thc.scheme.label} sends only {fp32 / sent:.2f}x fewer bytes {direction} than fp32 "
            f"(expected {nominal:g}x)"
            for direction, nominal, sent, fp32 in _savings(thc, settings.workers)
            if sent and fp32 < (1 - settings.saving_tolerance) * nominal * sent
        ]
        if not settings.loss_tolerant and not thc.workers_agree:
            found.append(f"{thc.scheme.label}: the workers did not end with bit-identical parameters")
    return found


def _savings(thc: RunResult, workers: int) -> list[tuple[str, float, float, float]]:
    """Return direction, nominal factor, payload, and fp32's through a server or, among ranks, in a ring."""
    up, down = int(thc.configuration["bits"]), int(thc.configuration.get("value_bits", thc.configuration["bits"]))
    fp32 = 4.0 * thc.coordinates * (1.0 if thc.scheme.through_aggregators else ring_share(workers))
    return [("up", 32 / up, thc.traffic.payload_up, fp32), ("down", 32 / down, thc.traffic.payload_down, fp32)]


def as_json(settings: DemoSettings, aggregators: str, links: str, results: list[RunResult]) -> dict[str, Any]:
    """All raw numbers, and the settings that repeat the run. aggregators: in words."""
    return {
        "command": sys.argv,
        "versions": {"python": platform.python_version()} | {n: version(n) for n in ("byteps_thc", "torch", "numpy")},
        "machine": platform.platform(),
        "settings": dataclasses.asdict(settings),
        "aggregators": aggregators,
        "links": links,
        "runs": [dataclasses.asdict(result) for result in results],
        "shortcomings": shortcomings(results, settings),
    }


def write_files(folder: Path, raw_numbers: dict[str, Any], plots: Callable[[Path], list[Path]]) -> list[Path]:
    """Write results.json and the plots into `folder`; returns their paths. ConfigurationError if it cannot."""
    raw = folder / "results.json"
    try:
        raw.write_text(json.dumps(raw_numbers, indent=1) + "\n", encoding="utf-8")
        return [raw, *plots(folder)]
    except OSError as error:
        raise ConfigurationError(f"cannot write to --out {folder}: {error.strerror}; the results are above") from error


def make_folder(folder: Path) -> None:
    """Make sure that files can be written into `folder`; ConfigurationError when they cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigurationError(f"cannot write to --out {folder}: {error.strerror}; name another folder") from error


def plot_losses(path: Path, results: list[RunResult]) -> Path:
    """Training loss of every step (thin) and validation loss (thick, dots) of every run."""
    from matplotlib.figure import Figure  # not needed before the runs are over, and slow to import

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for number, result in enumerate(results):
        color = f"C{number}"
        axes.plot(range(1, len(result.training_loss) + 1), result.training_loss, color=color, lw=0.6, alpha=0.5)
        steps = [step for step, _ in result.validation_loss]
        losses = [loss for _, loss in result.validation_loss]
        axes.plot(steps, losses, "o-", color=color, ms=3, label=f"{result.scheme.label}, validation")
    axes.set(
        xlabel="step",
        ylabel="loss (nats per character)",
        title="Training (thin) and validation loss (of a part of the text)",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    return path


def plot_bytes(path: Path, results: list[RunResult]) -> Path:
    """Bytes a worker sends and receives per step; for fp32 a parameter server's 4 bytes a coordinate each way."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    names = [result.scheme.label for result in results]
    for offset, direction in ((-0.2, "up"), (0.2, "down")):
        kib = [getattr(result.traffic, f"wire_{direction}") / 1024 for result in results]
        bars = axes.bar([i + offset for i in range(len(results))], kib, width=0.38, label=direction)
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=8)
    axes.set_xticks(range(len(results)), names)
    axes.set(
        ylabel="KiB per step and worker", title="Bytes per step (THC with headers; uncompressed: 4 bytes a coordinate)"
    )
    axes.legend()
    figure.savefig(path, dpi=120)
    return path


def plot_costs(folder: Path, results: list[RunResult], _: Links) -> list[Path]:
    """Write loss.png and bytes.png; return their paths.

    folder: their place.
    results: of all runs.
    """
    return [plot_losses(folder / "loss.png", results), plot_bytes(folder / "bytes.png", results)]


#: Cost of averaging, scheme by scheme.
COSTS = View(results_table, plot_costs, lambda *_: "")
