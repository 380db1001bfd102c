"""What was measured, as a table, a plot, sentences and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from byteps_thc.tools.break_even.quantities import show_bandwidth, show_parameters, show_seconds
from byteps_thc.tools.compare.measure import SMALL_NMSE, Measured
from byteps_thc.tools.plots import new_plot, save_plot


@dataclass(frozen=True)
class Report:
    """All ways to average gradients of that many parameters among so many workers."""

    parameters: int
    workers: int
    rows: Sequence[Measured]
    bandwidths_bps: Sequence[float]

    def table(self) -> Table:
        """A row for each way; last the time of a step's communication when nothing overlaps, by bandwidth."""
        table = Table("", title=f"{show_parameters(self.parameters)} parameters, {self.workers} workers")
        for heading in ("bits both ways", "of fp32", "error (NMSE)", "encode", "average, decode"):
            table.add_column(heading, justify="right")
        for bandwidth_bps in self.bandwidths_bps:
            table.add_column(show_bandwidth(bandwidth_bps), justify="right")
        full = self.rows[0].bits_both_ways
        for row in self.rows:
            table.add_row(
                row.name + (" *" if row.returns_loss else ""),
                f"{row.bits_both_ways:.2f}",
                f"{row.bits_both_ways / full:.1%}",
                f"{row.nmse:.2g}",
                show_seconds(row.encode_s * self.parameters),
                show_seconds(row.decode_s * self.parameters),
                *(show_seconds(self._step_s(row, bandwidth_bps)) for bandwidth_bps in self.bandwidths_bps),
            )
        return table

    def notes(self) -> list[str]:
        """What the table does not say by itself."""
        return [
            f"Bits of a parameter, sent and received by one of {self.workers} ranks that average for each other. "
            "Of all but its own share a rank sends and receives gradients, and averages: fp32 takes "
            f"{4 * (self.workers - 1)}/{self.workers} * 32 bits. Times are "
            "of one thread; those by bandwidth are a step's communication where nothing overlaps, without what "
            "copying bytes to and from the network costs the processors.",
            "* keeps what a step loses for the next one: its error of one step says little. It needs memory for that.",
        ]

    def advice(self) -> list[str]:
        """What to choose, a sentence for each bandwidth: the fastest of those whose error is small."""
        return [self._advice(bandwidth_bps) for bandwidth_bps in self.bandwidths_bps]

    def as_json(self) -> dict[str, Any]:
        """Everything as numbers."""
        steps = {f"{bps:g}": {row.name: self._step_s(row, bps) for row in self.rows} for bps in self.bandwidths_bps}
        choices = {f"{bps:g}": self._choice(bps).name for bps in self.bandwidths_bps}
        about = {"parameters": self.parameters, "workers": self.workers, "rows": [asdict(row) for row in self.rows]}
        return about | {"serial_s_by_bandwidth_bps": steps, "choice_by_bandwidth_bps": choices}

    def save_plot(self, path: Path) -> None:
        """Draw errors over bits; ConfigurationError without matplotlib, or where it cannot write."""
        figure, axes = new_plot()
        for row in self.rows[1:]:
            axes.plot(
                row.bits_both_ways, max(row.nmse, 1e-12), marker="x" if row.returns_loss else "o", color="#0072B2"
            )
            axes.annotate(
                row.name, (row.bits_both_ways, max(row.nmse, 1e-12)), xytext=(4, 4), textcoords="offset points"
            )
        axes.axhline(SMALL_NMSE, color="#999999", linestyle=":")
        axes.set(xscale="log", yscale="log", xlabel="bits of a parameter, sent and received", ylabel="error (NMSE)")
        axes.grid(visible=True, which="both", alpha=0.3)
        save_plot(figure, path)

    def _step_s(self, row: Measured, bandwidth_bps: float) -> float:
        return row.model.step_s(self.parameters, bandwidth_bps, overlapped=False)

    def _choice(self, bandwidth_bps: float) -> Measured:
        exact_enough = [row for row in self.rows if row.nmse <= SMALL_NMSE]
        return min(exact_enough, key=lambda row: self._step_s(row, bandwidth_bps))

    def _advice(self, bandwidth_bps: float) -> str:
        choice, full = self._choice(bandwidth_bps), self.rows[0]
        link = show_bandwidth(bandwidth_bps)
        if choice is full:
            return f"At {link}: fp32. All else computes longer than the link would take."
        own_s = self._step_s(choice, bandwidth_bps)
        text = f"At {link}: {choice.name}, the fastest with an error below {SMALL_NMSE:g}; "
        text += f"{self._step_s(full, bandwidth_bps) / own_s:.1f} times faster than fp32."
        faster = [row for row in self.rows if self._step_s(row, bandwidth_bps) < own_s]
        if not faster:
            return text
        other = min(faster, key=lambda row: row.nmse)
        return f"{text} {other.name} is faster and errs {other.nmse / choice.nmse:.2g} times as much."
