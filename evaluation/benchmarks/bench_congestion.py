"""Averages through thc-ps over links that carry less than is sent, against the time that the bytes take.

Four workers run ThcReducer with the default settings, each on a host of its own (a network namespace). thc-ps runs on a
fifth host (rows "one") or on each worker's host (rows "four"). Links are shaped in both directions
(lab/thc_lab/shaped_network.py). In rows with delay and loss, a relay of TAP devices carries the frames
(evaluation/congestion/frame_relay.py). Needs root. The same run measures bf16 over gloo, THC among the ranks, and every
scheme on links without a limit ("alone"), which is the processors' time. "first" is the first average; median and worst
are over the others.

        [--rows 100M-512k-one 100M-512k-four] [--steps 7] [--schemes thc_ps] [--json build/bench/congestion.json]
"""

import argparse
import fnmatch
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from congestion.measuring import Measured, measure, running_workers
from congestion.relayed_rows import RelayedRows
from congestion.rows import Row, all_rows
from congestion.shaped_rows import ShapedRows
from section import publish, table

from byteps_thc._base.errors import ConfigurationError

SCHEMES = {"thc_ps": "THC, thc-ps", "thc": "THC, ranks", "bf16": "bf16, gloo"}
COLUMNS = (
    "row",
    "scheme",
    "ideal",
    "first",
    "median",
    "worst",
    "median / ideal",
    "met",
    "alone",
    "packets",
    "repeated",
    "drops",
    "moves",
    "rejoins",
    "notes",
)
#: Averages of the schemes that are compared with: bf16 takes half a minute each on the long ways.
OTHERS_STEPS = 3
#: The table's targets, apart from the ratio to the ideal, which is a row's own.
MOST_REPEATED, WORST_OVER_MEDIAN, LEAST_SHARE, MOST_SPREAD = 0.02, 2.0, 0.3, 1.1


def missed(row: Row, measured: Measured) -> list[str]:
    """The targets that THC with servers does not meet."""
    steps = measured.steps
    if measured.failure:
        return ["ended"]
    checks = {"moves": not steps.moves, "rejoins": not steps.rejoins}
    if row.target is not None and measured.ratio is not None:
        checks |= {f"<= {row.target:g}": measured.ratio <= row.target}
    if not row.loss:
        checks |= {"repeats": steps.repeated_share <= MOST_REPEATED}
    if measured.worst_s is not None and measured.median_s is not None:
        checks |= {"worst": measured.worst_s <= WORST_OVER_MEDIAN * measured.median_s}
    if measured.tcp_share is not None and measured.thc_share is not None:
        checks |= {"shares": min(measured.tcp_share, measured.thc_share) >= LEAST_SHARE}
    if row.crowd:
        checks |= {"spread": max(steps.spread[1:]) <= MOST_SPREAD}
    return [name for name, met in checks.items() if not met]


def cells_of(row: Row, measured: Measured) -> list[str]:
    """A line of the table."""
    steps = measured.steps
    first_s = steps.seconds[0] if steps.seconds else None
    times = [_ms(seconds) for seconds in (measured.ideal_s, first_s, measured.median_s, measured.worst_s)]
    ratio = "" if measured.ratio is None else f"{measured.ratio:.2f}"
    notes = [measured.failure] if measured.failure else []
    if measured.tcp_share is not None and measured.thc_share is not None:
        notes.append(f"TCP {measured.tcp_share:.0%}, THC {measured.thc_share:.0%}")
    if row.crowd and steps.spread[1:]:
        notes.append(f"last / first worker {max(steps.spread[1:]):.2f}")
    counts = [f"{measured.drops:,}"]
    met = ""
    if measured.scheme == "thc_ps":
        counts = [f"{steps.packets:,}", f"{steps.repeated_share:.1%}", *counts, str(steps.moves), str(steps.rejoins)]
        why = missed(row, measured)
        met = f"**no**: {', '.join(why)}" if why else "yes"
    else:
        counts = ["", "", *counts, "", ""]
    return [
        row.name, SCHEMES[measured.scheme], *times, ratio, met, _ms(measured.alone_s), *counts, ", ".join(notes)
    ]  # fmt: skip


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:,.0f} ms"


def network_of(row: Row) -> Any:
    """The hosts that a row needs."""
    return RelayedRows() if row.relayed else ShapedRows(crowd=row.crowd)


def measure_all(rows: Sequence[Row], schemes: Sequence[str], steps: int, limit_s: float) -> list[tuple[Row, Measured]]:
    """Every scheme of every row."""
    results = []
    for row in rows:
        with network_of(row) as network:
            for scheme in schemes if not (row.crowd or row.beside_tcp) else ["thc_ps"]:
                # New workers for each: one that failed would be of no use to the next.
                with tempfile.TemporaryDirectory() as folder, running_workers(row, network, Path(folder)) as workers:
                    averages = steps if scheme == "thc_ps" else min(steps, OTHERS_STEPS)
                    measured = measure(row, scheme, network, workers, averages, limit_s)
                    if measured.failure:
                        print(workers.last_words(), file=sys.stderr)
                results.append((row, measured))
                print("  ".join(cells_of(row, measured)), flush=True)
    return results


def main() -> None:
    names = [row.name for row in all_rows()]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", default=["*"], help=f"patterns of names: {', '.join(names)}")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--steps", type=int, default=7, help="averages after the first")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that an average may take")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [row for row in all_rows() if any(fnmatch.fnmatch(row.name, pattern) for pattern in args.rows)]
    if not rows:
        parser.error(f"no row is called {' or '.join(args.rows)}")
    try:
        results = measure_all(rows, args.schemes, args.steps, args.limit)
    except ConfigurationError as error:
        sys.exit(str(error))
    cells = [cells_of(row, measured) for row, measured in results]
    runs = [{"row": asdict(row), "measured": asdict(measured)} for row, measured in results]
    publish(table([COLUMNS, *cells], "ll"), args.json, runs=runs)


if __name__ == "__main__":
    main()
