"""Error of the average gradient by the package's kernels, from the paper to the ranks' best, part by part.

All average the same gradients in one process, in a first step, which has no residual.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from averages.alternatives import COORDINATES, KINDS, gradients
from averages.ranks import RankCodes
from averages.schemes import nmse, packaged
from section import publish, table

from byteps_thc import ServerCodes

REPETITIONS = 2
#: Kinds of gradients, and workers.
CASES = (("normal", 4), ("normal", 8), ("normal", 17), ("normal, cosine .9", 8), ("copies", 8))
#: Settings of servers' codes that each part adds to the paper.
PARTS: dict[str, dict[str, Any]] = {
    "+ average divided by 1 - p": {"granularity": 30, "p": 1 / 32, "rounding": "independent"},
    "+ table for the number of workers": {"rounding": "independent"},
    "+ stratified rounding": {},
}


def parts() -> Iterator[tuple[str, ServerCodes | RankCodes]]:
    """By name, one after the other."""
    yield "the paper: 4 bits, g = 30, p = 1/32", ServerCodes.paper()
    for what, settings in PARTS.items():
        yield what, ServerCodes(bits=4, error_feedback=False, **settings)
    for bits in (4, 5, 6):
        yield "ranks that decode", RankCodes(bits, bits)


def cell(scheme: ServerCodes | RankCodes, kind: str, workers: int) -> str:
    """NMSE x 1e-3, and bits up and down without scales."""
    errors = []
    for repetition in range(REPETITIONS):
        own = gradients(kind, workers, np.random.default_rng([repetition, workers, KINDS.index(kind)]))
        average, _ = packaged(scheme, [slice(0, COORDINATES)])(own, np.random.default_rng([repetition, 7]))
        errors.append(nmse(average, own.mean(axis=0)))
    if isinstance(scheme, RankCodes):
        up, down = scheme.up_bits, scheme.down_bits
    else:
        resolved = scheme.resolve(workers)
        up, down = resolved.table.bits, resolved.value_bits
    return f"{mean(errors) * 1e3:.2f} ({up} + {down})"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cells = [["NMSE x 1e-3 (bits up + down)", *(f"{kind}, {workers} workers" for kind, workers in CASES)]]
    cells += [[what, *(cell(scheme, *case) for case in CASES)] for what, scheme in parts()]
    publish(table(cells), args.json)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
