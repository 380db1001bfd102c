"""Results as tables that fit 80 columns, sentences and JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from byteps_thc._cli.compare.model import Point, Way, break_even
from byteps_thc._cli.quantities import show_bandwidth, show_seconds


@dataclass(frozen=True)
class Report:
    """All ways to average a model's gradients; computes: of a step, 0 if unknown."""

    ways: Sequence[Way]
    bandwidths_bps: Sequence[float]
    compute_s: float

    def table(self) -> Table:
        """A row for each way: bits, error, and the time of a step by bandwidth."""
        table = Table("", "bits", "NMSE", title="Step" if self.compute_s else "Communication of a step")
        for bandwidth_bps in self.bandwidths_bps:
            table.add_column(show_bandwidth(bandwidth_bps), justify="right")
        for way in self.ways:
            times = (show_seconds(way.step_s(bps, self.compute_s)) for bps in self.bandwidths_bps)
            table.add_row(way.name, f"{way.bits:.3g}", f"{way.nmse:.1e}", *times)
        return table

    def points_table(self) -> Table:
        """A row for each peer: up to which bandwidth each kind of THC is faster."""
        table = Table("faster than", title="THC pays")
        for name in self._thc:
            table.add_column(name, justify="right")
        for peer in self._peers:
            table.add_row(peer, *(_shown(self.point(thc, peer)) for thc in self._thc))
        return table

    def notes(self) -> list[str]:
        """Return the facts beside the tables."""
        notes = ["bits: of a parameter, sent and received. NMSE: squared error of one step's average, relative to it."]
        if any(self.point(thc, peer).limited for thc in self._thc for peer in self._peers):
            notes.append("* the highest bandwidth that these processors fill: THC is faster up to it.")
        return notes

    def as_json(self) -> dict[str, Any]:
        """Everything as numbers; bps: null where THC is never faster."""
        rows = [
            asdict(way) | {"step_s": {f"{bps:g}": way.step_s(bps, self.compute_s) for bps in self.bandwidths_bps}}
            for way in self.ways
        ]
        points = {thc: {peer: asdict(self.point(thc, peer)) for peer in self._peers} for thc in self._thc}
        return {"compute_s": self.compute_s, "ways": rows, "break_even": points}

    def point(self, thc: str, peer: str) -> Point:
        """Return up to which bandwidth THC is faster than a peer."""
        ways = {way.name: way for way in self.ways}
        most_bps = max(way.most_bps for way in self.ways)
        return break_even(ways[thc], ways[peer], most_bps, self.compute_s)

    @property
    def _thc(self) -> list[str]:
        return [way.name for way in self.ways if way.name.startswith("THC")]

    @property
    def _peers(self) -> list[str]:
        return [way.name for way in self.ways if not way.name.startswith("THC")]


def _shown(point: Point) -> str:
    if point.bps is None:
        return "never"
    return f"{'below' if point.below else 'above'} {show_bandwidth(point.bps)}{'*' if point.limited else ''}"
