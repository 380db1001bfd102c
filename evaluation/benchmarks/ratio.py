"""Measure several callables in one run, interleaved, and report medians and ratios."""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from section import publish, table


@dataclass(frozen=True)
class Row:
    """One line of a benchmark: own and peer's time, and the target (ratio is peer time / own time)."""

    what: str
    own_us: float
    peer: str
    peer_us: float
    target: str
    ratio: float
    met: bool | None  # None: without a target


def medians_us(calls: dict[str, Callable[[], object]], repeats: int, warmup: int = 3) -> dict[str, float]:
    """Median wall time of each call in microseconds; the calls take turns, so that noise hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(repeats + warmup):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            call()
            if i >= warmup:
                times[name].append((time.perf_counter_ns() - start) / 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def at_least(what: str, own_us: float, peer: str, peer_us: float, factor: float) -> Row:
    """Target: own is at least `factor` times faster than the peer."""
    ratio = peer_us / own_us
    return Row(what, own_us, peer, peer_us, f">= {factor}x faster", ratio, ratio >= factor)


def at_most(what: str, own_us: float, peer: str, peer_us: float, factor: float) -> Row:
    """Target: own takes at most `factor` times the peer's time."""
    ratio = own_us / peer_us
    return Row(what, own_us, peer, peer_us, f"<= {factor}x its time", ratio, ratio <= factor)


def compared(what: str, own_us: float, peer: str, peer_us: float) -> Row:
    """No target: own time in units of the peer's."""
    return Row(what, own_us, peer, peer_us, "", own_us / peer_us, None)


def lines_of(rows: list[Row]) -> list[str]:
    """The rows as a table of the page."""
    cells = [["case", "own", "peer", "peer's", "ratio", "target"]]
    for row in rows:
        own, peer = (f"{us:,.1f} us" if us < 1e4 else f"{us / 1e3:,.1f} ms" for us in (row.own_us, row.peer_us))
        met = {True: f"{row.target}: yes", False: f"{row.target}: **no**", None: ""}[row.met]
        cells.append([row.what, own, row.peer, peer, f"{row.ratio:.2f}", met])
    return table(cells, "lrlrrl")


def report(rows: list[Row], json_path: Path | None) -> None:
    """Print the rows as a table and write them as JSON."""
    publish(lines_of(rows), json_path, rows=[asdict(row) for row in rows])
