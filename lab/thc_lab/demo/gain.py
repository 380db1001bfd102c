"""The gain that `thc demo` shows: losses by seconds and by bytes, the time to fp32's loss, and one sentence."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

from rich.table import Table

from thc_lab.demo.links import Links
from thc_lab.demo.settings import RunResult, Scheme
from thc_lab.demo.view import View

#: A run is at fp32's loss within 1 % of fp32's last one.
TARGET = 1.01
#: Colours of Okabe and Ito, which colour-blind people can distinguish, and markers.
_STYLES = {
    Scheme.FP32: ("#000000", "s"),
    Scheme.BF16: ("#999999", "D"),
    Scheme.THC: ("#56B4E9", "^"),
    Scheme.THC_RANKS: ("#0072B2", "o"),
    Scheme.UNIFORM_THC: ("#D55E00", "v"),
}
_MB = 1e6


def reference_of(results: Sequence[RunResult]) -> RunResult:
    """Return fp32's run, the first one without it."""
    return next((result for result in results if result.scheme is Scheme.FP32), results[0])


def label_of(result: RunResult) -> str:
    """Name a run."""
    return "THC, thc-ps" if result.scheme is Scheme.THC else result.scheme.label


def seconds_by_step(result: RunResult) -> list[float]:
    """Time from the start to the end of each step."""
    return list(accumulate(result.step_s))


def bytes_by_step(result: RunResult) -> list[float]:
    """Bytes sent until the end of each step: every step sends as many."""
    return [result.sent_bytes * step / len(result.step_s) for step in range(1, len(result.step_s) + 1)]


def curve(result: RunResult, axis: Callable[[RunResult], list[float]]) -> tuple[list[float], list[float]]:
    """Return x and loss wherever the loss was measured.

    result: a run.
    axis: x by step, seconds_by_step or bytes_by_step.
    """
    at = axis(result)
    return [at[step - 1] for step, _ in result.validation_loss], [loss for _, loss in result.validation_loss]


def target_of(results: Sequence[RunResult]) -> float | None:
    """Return the loss to reach; None after too few steps to measure any."""
    losses = reference_of(results).validation_loss
    return TARGET * losses[-1][1] if losses else None


def seconds_to(result: RunResult, target: float | None) -> float | None:
    """Return the second at which a run first had a loss, on lines between the measurements; None: never.

    result: the run.
    target: the loss; None: no run has it.
    """
    if target is None:
        return None
    before: tuple[float, float] | None = None
    for second, loss in zip(*curve(result, seconds_by_step), strict=True):
        if loss <= target:
            if before is None:
                return second
            part = (before[1] - target) / (before[1] - loss)
            return before[0] + part * (second - before[0])
        before = second, loss
    return None


def gain_table(results: Sequence[RunResult]) -> Table:
    """One row per run."""
    reference, target = reference_of(results), target_of(results)
    table = Table(title="Losses, time and bytes of each run", caption=_caption(reference, target))
    table.add_column("scheme", no_wrap=True)
    loss = "loss" if target is None else f"{target:.3f}"
    for heading in ("last loss", "time (s)", f"to {loss} (s)", "sent (MB)", "saving"):
        table.add_column(heading, justify="right")
    for result in results:
        reached = seconds_to(result, target)
        table.add_row(
            label_of(result),
            f"{result.final_validation_loss:.4f}",
            f"{result.wall_s:.1f}",
            "never" if reached is None else f"{reached:.1f}",
            f"{result.sent_bytes / _MB:,.1f}",
            f"{_ratio(reference.sent_bytes, result.sent_bytes):.2f}x",
        )
    return table


def _caption(reference: RunResult, target: float | None) -> str:
    lines = ["Time: of training alone. Sent: by one host, on average."]
    if target is not None:
        lines.append(f"{target:.3f}: the last loss of {label_of(reference)} plus 1 %, on a part of the text.")
    return "\n".join(lines)


def sentence(results: Sequence[RunResult], links: Links) -> str:
    """Tell the gain of THC over fp32; empty without both runs.

    results: of all runs.
    links: between the workers; loopback says nothing about time.
    """
    reference, target = reference_of(results), target_of(results)
    reached = {result.scheme: seconds_to(result, target) for result in results}
    ours = [result for result in results if result.scheme in (Scheme.THC, Scheme.THC_RANKS)] or [
        result for result in results if result.scheme is Scheme.UNIFORM_THC
    ]
    if reference.scheme is not Scheme.FP32 or not ours:
        return ""
    best = min(ours, key=lambda result: (reached[result.scheme] is None, reached[result.scheme] or result.wall_s))
    fewer = f"{_ratio(reference.sent_bytes, best.sent_bytes):.1f}x fewer bytes"
    excess = 100 * excess_loss(best, reference)
    loss = f"its last loss is {abs(excess):.1f} % {'above' if excess >= 0 else 'below'} fp32's"
    own, fp32 = reached[best.scheme], reached[Scheme.FP32]
    if not links.hosts:
        return f"{label_of(best)} sent {fewer} than fp32; {loss}. Links without a limit say nothing about time."
    if own is None or fp32 is None:
        factor = _times(reference.wall_s, best.wall_s)
        return f"{label_of(best)} trained {len(best.step_s)} steps {factor} than fp32, with {fewer}; {loss}."
    factor = _times(fp32, own)
    return (
        f"{label_of(best)} came within 1 % of fp32's last loss after {own:.0f} s, fp32 after {fp32:.0f} s: "
        f"{factor}, with {fewer}; {loss}."
    )


def excess_loss(result: RunResult, reference: RunResult) -> float:
    """Return the final validation loss relative to another run's, 0.01 for 1 % worse.

    result: the run.
    reference: the other run.
    """
    return result.final_validation_loss / reference.final_validation_loss - 1


def _times(other_s: float, own_s: float) -> str:
    factor = _ratio(other_s, own_s)
    return f"{factor:.1f}x faster" if factor >= 1 else f"{1 / factor:.1f}x slower"


def _ratio(reference: float, value: float) -> float:
    return reference / value if value else 1.0  # one worker sends nothing


def write_plots(folder: Path, results: Sequence[RunResult], links: Links) -> list[Path]:
    """Write loss_by_seconds.png and loss_by_bytes.png; return their paths.

    folder: their place.
    results: of all runs.
    links: for the title.
    """
    return [
        _plot(folder / "loss_by_seconds.png", results, seconds_by_step, "training time [s]", links.sentence, 1.0),
        _plot(folder / "loss_by_bytes.png", results, bytes_by_step, "sent by each host [MB]", links.sentence, _MB),
    ]


def _plot(
    path: Path,
    results: Sequence[RunResult],
    axis: Callable[[RunResult], list[float]],
    label: str,
    title: str,
    unit: float,
) -> Path:
    """Draw the losses of all runs, one colour and marker each. Bytes differ by factors: their axis is logarithmic."""
    from matplotlib.figure import Figure  # not needed before the runs are over, and slow to import

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for result in results:
        color, marker = _STYLES[result.scheme]
        x, losses = curve(result, axis)
        axes.plot([value / unit for value in x], losses, color=color, marker=marker, ms=5, label=label_of(result))
    axes.set(xlabel=label, ylabel="held-out loss [nats per character]")
    axes.set_title(title, fontsize="small", wrap=True)
    if unit != 1.0 and all(result.sent_bytes for result in results):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=120)
    return path


GAIN = View(gain_table, write_plots, sentence)
