"""Error of the average gradient, by the package's kernels: what each part of THC gains, and THC against alternatives.

1. Stratified rounding, with the tables chosen for it, against independent rounding; and what is left where the known
   part of the rounding is subtracted (ThcConfig.subtract_rounding), by the same table.
2. Sums among ranks, exact and requantized, in the first step.
3. From the paper to what ranks can do, one part after the other.
4. Requantized sums against EDEN, QSGD, MXFP4 and MXFP8, NVFP4 and integers in groups, at equal bytes.
5. With error feedback, where workers agree: p of the table, and less (ThcConfig.adaptive_clamp).

With rounding="independent" and 4-bit codes every bit is as before stratified rounding came. All average the same
gradients in one run, in one process, with as many bytes. NMSE: |average - exact average|^2 / |exact average|^2.

    PYTHONPATH=tests/lib .venv/bin/python tests/benchmarks/bench_accuracy.py [--json build/bench/accuracy.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from gradient_study.alternatives import (
    ABLATION,
    KINDS,
    WORKERS,
    Errors,
    ablation,
    alternative_errors,
    nmse,
    thc_errors,
)
from gradient_study.ranks_averager import RanksAverager
from rich.console import Console
from rich.table import Table

from byteps_thc import ThcConfig
from byteps_thc.arrays import F32
from byteps_thc.config import ResolvedConfig
from byteps_thc.rounding import RoundingMode

COORDINATES = 1 << 17
#: Steps with error feedback: the residual has its size after a few; the rest are measured.
STEPS, SETTLED = 16, 6
#: NMSE, independent / stratified, by number of workers: of 4-bit codes and independent normal gradients.
TARGETS = {4: 1.4, 8: 1.5, 17: 1.6}
#: NMSE among ranks at most, by number of ranks and bits up and down together: independent normal gradients.
RANKS_TARGETS = {(4, 11): 5.2e-3, (4, 12): 2.7e-3, (8, 12): 2.7e-3, (17, 12): 2.7e-3}
#: NMSE of 4-bit codes with feedback and adaptive_clamp at most, by number of workers and correlation.
AGREEMENT_TARGETS = {(17, 0.7): 2.7e-3, (17, 1.0): 2.5e-3}


@dataclass(frozen=True)
class Row:
    """Figures of one line. ratio: independent / stratified; gain: stratified / subtracted. met: None without target."""

    what: str
    workers: int
    independent: float
    stratified: float
    ratio: float
    target: float | None
    met: bool | None
    subtracted: float
    gain: float


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
    averager = RanksAverager(resolved, COORDINATES)
    for step in range(STEPS):
        own = gradients(resolved.workers, step, correlation)
        average = averager.average(torch.from_numpy(np.stack(own))).numpy()
        exact = np.mean(own, axis=0, dtype=np.float64)
        yield float(np.sum(np.square(average - exact)) / np.sum(np.square(exact)))


def compare(bits: int, workers: int, correlation: float = 0.0) -> list[Row]:
    """The first step, when nothing is left over yet, and the mean of those with a residual."""

    def figures(rounding: RoundingMode, subtract: bool = False) -> tuple[float, float]:
        config = ThcConfig(
            bits=bits, down_bits=None, error_feedback=True, rounding=rounding, subtract_rounding=subtract
        )
        all_steps = list(errors(config.resolve(workers), correlation))
        return all_steps[0], float(np.mean(all_steps[SETTLED:]))

    rows = []
    kind = f"{bits}-bit codes, {'independent' if not correlation else f'correlation {correlation}'}"
    three = figures("independent"), figures("stratified"), figures("stratified", subtract=True)
    for when, independent, stratified, subtracted in zip(("first step", "with feedback"), *three, strict=True):
        ratio = independent / stratified
        target = TARGETS.get(workers) if bits == 4 and not correlation else None
        met = None if target is None else ratio >= target
        rows.append(
            Row(
                f"{kind}, {when}",
                workers,
                independent,
                stratified,
                ratio,
                target,
                met,
                subtracted,
                stratified / subtracted,
            )
        )
    return rows


@dataclass(frozen=True)
class RanksRow:
    """NMSE of a first step among ranks. bits: up + down. target, met: None without one."""

    what: str
    workers: int
    bits: str
    nmse: float
    target: float | None
    met: bool | None


def among_ranks(workers: int, correlation: float = 0.0) -> Iterator[RanksRow]:
    """Exact sums of 4-bit codes, packed, and requantized ones of 10 to 14 bits in all; without error feedback."""
    kind = "independent" if not correlation else f"correlation {correlation}"
    for total in (None, *range(10, 15)):
        config = ThcConfig(total_bits=total, error_feedback=False, rounding="stratified", subtract_rounding=False)
        if total is None:
            config = config.model_copy(update={"down_bits": None})
        resolved = config.resolve(workers, packed_sums=True)
        error = next(errors(resolved, correlation))
        what = f"{kind}, {'exact' if total is None else 'requantized'} sums"
        target = None if total is None or correlation else RANKS_TARGETS.get((workers, total))
        met = None if target is None else error <= target
        yield RanksRow(what, workers, f"{resolved.table.bits} + {resolved.sum_bits}", error, target, met)


def ablation_cells() -> list[list[str]]:
    """A heading, then a part in each line: NMSE x 1e-3 and bits up + down."""
    cells = [["", *(f"{kind}, {workers} ranks" for kind, workers in ABLATION)]]
    for what, schemes in ablation():
        figures = [
            f"{nmse(scheme, *case) * 1e3:.2f} ({scheme.resolved.table.bits} + {scheme.resolved.sum_bits})"
            for scheme, case in zip(schemes, ABLATION, strict=True)
        ]
        cells.append([what, *figures])
    return cells


def alternatives_cells(own: list[Errors], others: list[Errors]) -> dict[str, list[list[str]]]:
    """Tables of THC's errors and of those of others over them, with headings; a cell has one for each of WORKERS."""
    ranks = ", ".join(map(str, WORKERS))
    first = [[f"NMSE x 1e-3 of {ranks} ranks", "bits", *KINDS]]
    for row in own:
        figures = (" ".join(f"{error * 1e3:.3g}" for error in row.nmse[kind]) for kind in KINDS)
        first.append([row.what, f"{row.bits_up + row.bits_down:.2f}", *figures])
    second = [[f"error / THC's of {ranks} ranks", "bits up + down", "unbiased", "total_bits", *KINDS]]
    for row in others:
        thc = next(line for line in own if line.total == row.total)
        ratios = (" ".join(ratio(*pair) for pair in zip(row.nmse[kind], thc.nmse[kind], strict=True)) for kind in KINDS)
        unbiased = "yes" if row.unbiased else "no"
        second.append([row.what, f"{row.bits_up:.2f} + {row.bits_down:.2f}", unbiased, str(row.total), *ratios])
    return {"thc": first, "alternatives": second}


def ratio(theirs: float, thc: float) -> str:
    """How many times as much another scheme errs; bold where it errs less."""
    if theirs < thc:
        return f"**{theirs / thc:.2f}**"
    return f"{theirs / thc:.{1 if theirs < 10 * thc else 0}f}"


def show(title: str, cells: list[list[str]]) -> None:
    """Print a table whose first line is its heading."""
    table = Table(*cells[0], title=title)
    for line in cells[1:]:
        table.add_row(*line)
    Console(width=180).print(table)


@dataclass(frozen=True)
class AgreementRow:
    """NMSE with feedback. pinned: p is the table's; adaptive: ThcConfig.adaptive_clamp. met: None without target."""

    bits: int
    workers: int
    correlation: float
    pinned: float
    adaptive: float
    gain: float
    target: float | None
    met: bool | None


def where_workers_agree(bits: int, workers: int) -> Iterator[AgreementRow]:
    """From gradients that have nothing in common to the same one everywhere."""
    for correlation in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0):
        pinned, adaptive = (
            float(np.mean(list(errors(config.resolve(workers), correlation))[SETTLED:]))
            for config in (
                ThcConfig(bits=bits, error_feedback=True, adaptive_clamp=adaptive_clamp)
                for adaptive_clamp in (False, True)
            )
        )
        target = AGREEMENT_TARGETS.get((workers, correlation)) if bits == 4 else None
        target = 1.01 * pinned if not correlation else target
        met = None if target is None else adaptive <= target
        yield AgreementRow(bits, workers, correlation, pinned, adaptive, pinned / adaptive, target, met)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cases = [*((4, workers, 0.0) for workers in (2, 4, 8, 17)), (4, 4, 0.9), (4, 8, 0.9)]
    cases += [(bits, 8, 0.0) for bits in (1, 2, 3, 8)]
    rows = [row for case in cases for row in compare(*case)]
    words = {True: "yes", False: "NO", None: ""}
    cells = [["what", "workers", "independent", "stratified", "ratio", "target", "met", "subtracted", "gain"]]
    for row in rows:
        target = "" if row.target is None else f">= {row.target}"
        figures = (f"{row.independent:.4e}", f"{row.stratified:.4e}", f"{row.ratio:.2f}", target, words[row.met])
        cells.append([row.what, str(row.workers), *figures, f"{row.subtracted:.4e}", f"{row.gain:.2f}"])
    show("NMSE of the average", cells)
    ranks = [row for workers in WORKERS for row in among_ranks(workers)]
    ranks += [row for workers in (4, 8) for row in among_ranks(workers, 0.9)]
    cells = [["what", "ranks", "bits", "NMSE", "target", "met"]]
    for line in ranks:
        target = "" if line.target is None else f"<= {line.target}"
        cells.append([line.what, str(line.workers), line.bits, f"{line.nmse:.4e}", target, words[line.met]])
    show("NMSE of the average among ranks, first step", cells)
    parts = ablation_cells()
    show("NMSE x 1e-3 (bits up + down), first step", parts)
    own, others = list(thc_errors()), list(alternative_errors())
    tables = alternatives_cells(own, others)
    for title, cells in tables.items():
        show(title, cells)
    agreeing = [row for case in ((4, 4), (4, 8), (4, 17), (2, 8), (2, 17)) for row in where_workers_agree(*case)]
    cells = [["bits", "workers", "correlation", "p of the table", "adaptive clamp", "gain", "target", "met"]]
    for found in agreeing:
        target = "" if found.target is None else f"<= {found.target:.4e}"
        figures = (f"{found.pinned:.4e}", f"{found.adaptive:.4e}", f"{found.gain:.2f}", target, words[found.met])
        cells.append([str(found.bits), str(found.workers), str(found.correlation), *figures])
    show("NMSE of the average with error feedback, where workers agree", cells)
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"rows": [asdict(row) for row in rows], "ranks": [asdict(row) for row in ranks]}
        result["agreeing"] = [asdict(row) for row in agreeing]
        measured = {"errors": [asdict(row) for row in (*own, *others)], "ablation": parts, "tables": tables}
        args.json.write_text(json.dumps(result | measured, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
