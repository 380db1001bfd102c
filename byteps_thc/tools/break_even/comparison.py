"""THC against fp32 and bf16 at a number of bandwidths, as a table, a plot and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from byteps_thc.tools.break_even.model import FLAT, Scheme, break_even_bps
from byteps_thc.tools.break_even.quantities import show_bandwidth, show_seconds
from byteps_thc.tools.plots import new_plot, save_plot

#: overlapped, serial: from the best case to the worst
_CASES = (True, False)


@dataclass(frozen=True)
class Comparison:
    """THC and what it is compared with, for a model of that many parameters."""

    parameters: int
    thc: Scheme
    others: Sequence[Scheme]
    bandwidths_bps: Sequence[float]

    def table(self) -> Table:
        """A row per bandwidth: seconds of a step's communication, best case .. worst case, and the speed-up."""
        table = Table("link")
        for scheme in (*self.others, self.thc):
            table.add_column(scheme.name, justify="right")
        for other in self.others:
            table.add_column(f"THC vs {other.name}", justify="right")
        for bandwidth_bps in self.bandwidths_bps:
            times = [self._range(scheme, bandwidth_bps) for scheme in (*self.others, self.thc)]
            gains = [self._gain(other, bandwidth_bps) for other in self.others]
            table.add_row(show_bandwidth(bandwidth_bps), *times, *gains)
        return table

    def verdicts(self) -> list[str]:
        """The break-even points, a sentence each."""
        return [*(self._verdict(other) for other in self.others), *self._flat_verdict()]

    def as_json(self) -> dict[str, Any]:
        """Everything as numbers; a bandwidth that is infinite is null."""
        return {
            "parameters": self.parameters,
            "schemes": [
                {
                    "name": scheme.name,
                    "link_bytes_per_parameter": scheme.link_bytes,
                    "compute_s_per_parameter": scheme.compute_s,
                    "steps": [
                        {"bandwidth_bps": bps, "overlapped_s": best, "serial_s": worst}
                        for bps in self.bandwidths_bps
                        for best, worst in [self._times_s(scheme, bps)]
                    ],
                }
                for scheme in (*self.others, self.thc)
            ],
            "break_even_bps": {
                other.name: {
                    "overlapped": _finite(break_even_bps(self.thc, other, overlapped=True)),
                    "serial": _finite(break_even_bps(self.thc, other, overlapped=False)),
                }
                for other in self.others
            },
        }

    def save_plot(self, path: Path) -> None:
        """Draw step times over bandwidths, a band from best to worst case; ConfigurationError without matplotlib."""
        figure, axes = new_plot()
        gbps = [bps / 1e9 for bps in self.bandwidths_bps]
        for scheme in (*self.others, self.thc):
            best, worst = zip(*(self._times_s(scheme, bps) for bps in self.bandwidths_bps), strict=True)
            [line] = axes.plot(gbps, worst, marker=".", label=scheme.name)
            axes.fill_between(gbps, best, worst, alpha=0.2, color=line.get_color())
        axes.set(xscale="log", yscale="log", xlabel="link bandwidth [Gb/s]", ylabel="communication of a step [s]")
        axes.grid(visible=True, which="both", alpha=0.3)
        axes.legend(title="best .. worst case")
        save_plot(figure, path)

    def _times_s(self, scheme: Scheme, bandwidth_bps: float) -> tuple[float, float]:
        best, worst = (scheme.step_s(self.parameters, bandwidth_bps, overlapped=case) for case in _CASES)
        return best, worst

    def _range(self, scheme: Scheme, bandwidth_bps: float) -> str:
        best, worst = map(show_seconds, self._times_s(scheme, bandwidth_bps))
        return best if best == worst else f"{best} .. {worst}"

    def _gain(self, other: Scheme, bandwidth_bps: float) -> str:
        """Worst case against worst case .. best against best."""
        best, worst = (
            theirs_s / ours_s
            for theirs_s, ours_s in zip(
                self._times_s(other, bandwidth_bps), self._times_s(self.thc, bandwidth_bps), strict=True
            )
        )
        low, high = f"{min(best, worst):.2f}x", f"{max(best, worst):.2f}x"
        return low if low == high else f"{low} .. {high}"

    def _flat_verdict(self) -> list[str]:
        """What flat THC loses by, where there is one: no bandwidth is low enough for what sends more."""
        sent = {scheme.name: scheme for scheme in self.others}
        if FLAT not in sent or sent[FLAT].link_bytes < sent["bf16"].link_bytes:
            return []
        return [
            f"Flat THC sends {sent[FLAT].link_bytes:.3g} bytes a parameter over a node's cards, and bf16 "
            f"{sent['bf16'].link_bytes:.3g}: it loses to bf16 at any bandwidth. Two levels are the default "
            "where they can be had."
        ]

    def _verdict(self, other: Scheme) -> str:
        best_bps, worst_bps = (break_even_bps(self.thc, other, overlapped=case) for case in _CASES)
        low, high = sorted((best_bps, worst_bps))
        if high == 0:
            return f"THC sends as much as {other.name} with these settings, and never wins."
        if math.isinf(low):
            return f"THC is faster than {other.name} at any bandwidth: it computes no more, by what is counted here."
        low_case, high_case = ("everything", "nothing") if best_bps < worst_bps else ("nothing", "everything")
        return (
            f"THC is faster than {other.name} below {show_bandwidth(low)} ({low_case} overlaps) .. "
            f"{show_bandwidth(high)} ({high_case} overlaps)."
        )


def _finite(bps: float) -> float | None:
    return None if math.isinf(bps) else bps
