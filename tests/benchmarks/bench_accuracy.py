"""Error of the average gradient: stratified rounding, with the tables chosen for it, against independent rounding.

And what is left where the known part of the rounding is subtracted (ThcConfig.subtract_rounding), by the same table.
And sums among ranks, exact and requantized, in the first step.

With rounding="independent" and 4-bit codes every bit is as before stratified rounding came. Both average the same
gradients in one run, in one process, with as many bytes. NMSE: |average - exact average|^2 / |exact average|^2.

    python tests/benchmarks/bench_accuracy.py [--json build/bench/accuracy.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from byteps_thc import Compressor, ThcConfig, _core
from byteps_thc.arrays import F32, value_dtype
from byteps_thc.compressor import received_by_all
from byteps_thc.config import ResolvedConfig
from byteps_thc.rounding import RoundingMode

COORDINATES = 1 << 17
#: Steps with error feedback: the residual has its size after a few; the rest are measured.
STEPS, SETTLED = 16, 6
#: NMSE, independent / stratified, by number of workers: of 4-bit codes and independent normal gradients.
TARGETS = {4: 1.4, 8: 1.5, 17: 1.6}
#: NMSE among ranks at most, by number of ranks and bits up and down together: independent normal gradients.
RANKS_TARGETS = {(4, 11): 5.2e-3, (4, 12): 2.7e-3, (8, 12): 2.7e-3, (17, 12): 2.7e-3}


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


def errors(config: ThcConfig | ResolvedConfig, workers: int, correlation: float) -> Iterator[float]:
    """NMSE of the average in every step."""
    compressors = [Compressor(config, workers=workers, worker=worker, threads=1) for worker in range(workers)]
    partitions = [compressor.partition("gradient", COORDINATES) for compressor in compressors]
    first = compressors[0]
    for step in range(STEPS):
        own = gradients(workers, step, correlation)
        tasks = list(zip(compressors, partitions, own, strict=True))
        norms = np.maximum.reduce([worker.measure(partition, x, round=step) for worker, partition, x in tasks])
        sums = np.zeros(partitions[0].padded, value_dtype(first.resolved.value_bits))
        for worker, partition, _ in tasks:
            codes = worker.encode(partition, norms)
            _core.lookup_sum(codes, first.table.array, sums, bits=first.table.bits, add=True)
        average = np.zeros(COORDINATES, np.float32)
        first.decode(partitions[0], *received_by_all(first, partitions[0], sums), average)
        exact = np.mean(own, axis=0, dtype=np.float64)
        yield float(np.sum(np.square(average - exact)) / np.sum(np.square(exact)))


def compare(bits: int, workers: int, correlation: float = 0.0) -> list[Row]:
    """The first step, when nothing is left over yet, and the mean of those with a residual."""

    def figures(rounding: RoundingMode, subtract: bool = False) -> tuple[float, float]:
        config = ThcConfig(bits=bits, rounding=rounding, subtract_rounding=subtract, error_feedback=True)
        all_steps = list(errors(config, workers, correlation))
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
    """Exact sums, as by default, and requantized ones of 10 to 14 bits in all."""
    kind = "independent" if not correlation else f"correlation {correlation}"
    for total in (None, *range(10, 15)):
        resolved = ThcConfig(total_bits=total).resolve(workers, packed_sums=True)
        nmse = next(errors(resolved, workers, correlation))
        what = f"{kind}, {'exact' if total is None else 'requantized'} sums"
        target = None if total is None or correlation else RANKS_TARGETS.get((workers, total))
        met = None if target is None else nmse <= target
        yield RanksRow(what, workers, f"{resolved.table.bits} + {resolved.sum_bits}", nmse, target, met)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cases = [*((4, workers, 0.0) for workers in (2, 4, 8, 17)), (4, 4, 0.9), (4, 8, 0.9)]
    cases += [(bits, 8, 0.0) for bits in (1, 2, 3, 8)]
    rows = [row for case in cases for row in compare(*case)]
    table = Table(
        "what",
        "workers",
        "independent",
        "stratified",
        "ratio",
        "target",
        "met",
        "subtracted",
        "gain",
        title="NMSE of the average",
    )
    for row in rows:
        target, met = "" if row.target is None else f">= {row.target}", {True: "yes", False: "NO", None: ""}[row.met]
        cells = (f"{row.independent:.4e}", f"{row.stratified:.4e}", f"{row.ratio:.2f}")
        table.add_row(row.what, str(row.workers), *cells, target, met, f"{row.subtracted:.4e}", f"{row.gain:.2f}")
    Console(width=140).print(table)
    ranks = [row for workers in (2, 4, 8, 17, 32) for row in among_ranks(workers)]
    ranks += [row for workers in (4, 8) for row in among_ranks(workers, 0.9)]
    table = Table("what", "ranks", "bits", "NMSE", "target", "met", title="NMSE of the average among ranks, first step")
    for line in ranks:
        target, met = "" if line.target is None else f"<= {line.target}", {True: "yes", False: "NO", None: ""}[line.met]
        table.add_row(line.what, str(line.workers), line.bits, f"{line.nmse:.4e}", target, met)
    Console(width=140).print(table)
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"rows": [asdict(row) for row in rows], "ranks": [asdict(row) for row in ranks]}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
