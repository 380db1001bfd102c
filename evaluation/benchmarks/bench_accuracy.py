"""Error of the average gradient, by the package's kernels: what each part of THC gains, and THC against alternatives.

1. Stratified rounding, with the tables chosen for it, against independent rounding: workers and servers.
2. From the paper to what ranks can do, one part after the other.
3. Ranks that decode, with 3 to 8 bits each way, and workers with servers.
4. Ranks that decode against EDEN, QSGD, MXFP4 and MXFP8, NVFP4 and integers in groups, at equal bytes.

With rounding="independent" and 4-bit codes every bit is as before stratified rounding came. All average the same
gradients in one run, in one process, with as many bytes. NMSE: |average - exact average|^2 / |exact average|^2.

    PYTHONPATH=evaluation:tests/lib .venv/bin/python evaluation/benchmarks/bench_accuracy.py
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from averages.alternatives import (
    ABLATION,
    KINDS,
    WORKERS,
    Errors,
    ablation,
    alternative_errors,
    nmse,
    thc_errors,
)
from averages.servers_averager import ServersAverager
from rich.console import Console
from rich.table import Table

from byteps_thc import ThcConfig
from byteps_thc.arrays import F32
from byteps_thc.config import Bits, ResolvedConfig
from byteps_thc.rounding import RoundingMode

COORDINATES = 1 << 17
#: Steps with error feedback: the residual has its size after a few; the rest are measured.
STEPS, SETTLED = 16, 6
#: NMSE, independent / stratified, by number of workers: of 4-bit codes and independent normal gradients.
TARGETS = {4: 1.4, 8: 1.5, 17: 1.6}


@dataclass(frozen=True)
class Row:
    """Figures of one line. ratio: independent / stratified. target, met: None without one."""

    what: str
    workers: int
    independent: float
    stratified: float
    ratio: float
    target: float | None
    met: bool | None


def gradients(workers: int, step: int, correlation: float) -> list[F32]:
    """Normal vectors of unit variance with that correlation between workers."""
    random = np.random.default_rng([workers, step])
    common = random.standard_normal(COORDINATES) * correlation**0.5
    return [
        (common + random.standard_normal(COORDINATES) * (1 - correlation) ** 0.5).astype(np.float32)
        for _ in range(workers)
    ]


def errors(resolved: ResolvedConfig, correlation: float) -> Iterator[float]:
    """NMSE of the average in every step."""
    averager = ServersAverager(resolved, COORDINATES)
    for step in range(STEPS):
        own = gradients(resolved.workers, step, correlation)
        average = averager.average(torch.from_numpy(np.stack(own))).numpy()
        exact = np.mean(own, axis=0, dtype=np.float64)
        yield float(np.sum(np.square(average - exact)) / np.sum(np.square(exact)))


def compare(bits: Bits, workers: int, correlation: float = 0.0) -> list[Row]:
    """The first step, when nothing is left over yet, and the mean of those with a residual."""

    def figures(rounding: RoundingMode) -> tuple[float, float]:
        config = ThcConfig(bits=bits, error_feedback=True, rounding=rounding)
        all_steps = list(errors(config.resolve(workers), correlation))
        return all_steps[0], float(np.mean(all_steps[SETTLED:]))

    kind = f"{bits}-bit codes, {'independent' if not correlation else f'correlation {correlation}'}"
    target = TARGETS.get(workers) if bits == 4 and not correlation else None
    both = zip(("first step", "with feedback"), figures("independent"), figures("stratified"), strict=True)
    return [
        Row(
            f"{kind}, {when}",
            workers,
            independent,
            stratified,
            independent / stratified,
            target,
            None if target is None else independent / stratified >= target,
        )
        for when, independent, stratified in both
    ]


def ablation_cells() -> list[list[str]]:
    """A heading, then a part in each line: NMSE x 1e-3 and bits up + down."""
    cells = [["", *(f"{kind}, {workers} workers" for kind, workers in ABLATION)]]
    for what, schemes in ablation():
        figures = [
            f"{nmse(scheme, *case) * 1e3:.2f} ({int(scheme.bits_up)} + {int(scheme.bits_down)})"
            for scheme, case in zip(schemes, ABLATION, strict=True)
        ]
        cells.append([what, *figures])
    return cells


def alternatives_cells(own: list[Errors], others: list[Errors]) -> dict[str, list[list[str]]]:
    """Tables of THC's errors and of those of others over them, with headings; a cell has one for each of WORKERS."""
    workers = ", ".join(map(str, WORKERS))
    first = [[f"NMSE x 1e-3 of {workers} workers", *KINDS]]
    first += [
        [row.what, *(" ".join(f"{error * 1e3:.3g}" for error in row.nmse[kind]) for kind in KINDS)] for row in own
    ]
    second = [[f"error / that of {workers} ranks that decode", "bits up + down", "unbiased", "ranks'", *KINDS]]
    ranks = {row.pair: row for row in own if row.what.startswith("ranks")}
    for row in others:
        thc = ranks[row.pair].nmse
        ratios = (" ".join(ratio(*pair) for pair in zip(row.nmse[kind], thc[kind], strict=True)) for kind in KINDS)
        unbiased, (up, down) = "yes" if row.unbiased else "no", row.pair
        second.append([row.what, f"{row.bits_up:.2f} + {row.bits_down:.2f}", unbiased, f"{up} + {down}", *ratios])
    return {"thc": first, "alternatives": second}


def ratio(theirs: float, thc: float) -> str:
    """Return how many times as much another scheme errs, bold if that is below 1 by .5 % and more."""
    found = theirs / thc
    if found < 0.995:
        return f"**{found:.2f}**"
    return f"{found:.{2 if found < 2 else 1 if found < 10 else 0}f}"


def show(title: str, cells: list[list[str]]) -> None:
    """Print a table whose first line is its heading."""
    table = Table(*cells[0], title=title)
    for line in cells[1:]:
        table.add_row(*line)
    Console(width=180).print(table)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [row for workers in (2, 4, 8, 17) for row in compare(4, workers)]
    rows += [row for workers in (4, 8) for row in compare(4, workers, 0.9)]
    other_bits: tuple[Bits, ...] = (1, 2, 3, 8)
    rows += [row for bits in other_bits for row in compare(bits, 8)]
    words = {True: "yes", False: "NO", None: ""}
    cells = [["what", "workers", "independent", "stratified", "ratio", "target", "met"]]
    for row in rows:
        target = "" if row.target is None else f">= {row.target}"
        figures = (f"{row.independent:.4e}", f"{row.stratified:.4e}", f"{row.ratio:.2f}", target, words[row.met])
        cells.append([row.what, str(row.workers), *figures])
    show("NMSE of the average, workers and servers", cells)
    parts = ablation_cells()
    show("NMSE x 1e-3 (bits up + down), first step", parts)
    own, others = list(thc_errors()), list(alternative_errors())
    tables = alternatives_cells(own, others)
    for title, cells in tables.items():
        show(title, cells)
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"rows": [asdict(row) for row in rows], "errors": [asdict(row) for row in (*own, *others)]}
        args.json.write_text(json.dumps(result | {"ablation": parts, "tables": tables}, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
