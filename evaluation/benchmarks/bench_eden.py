"""Errors of ranks that decode each other's codes, over EDEN's at as many bits each way, by the kernels in one process.

EDEN has a rotation for each rank, so that the owner of a shard needs an inverse rotation for each rank. Gradients are
drawn, or come from the GPT (1 M parameters) and the CNN (0.7 M) of trainings/models.py: early, in the middle and late
in a training on exact averages, one batch a rank, without the parameters that travel exactly. All rotation blocks end
at tensors.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from averages.against_eden import Gradients, real, synthetic
from section import publish, table

RANKS, BITS = (2, 4, 8, 32), range(3, 9)
COORDINATES, REPETITIONS = 1 << 17, 8
#: Error over EDEN's at most; of copies, below 1.
TARGET, COPIES_TARGET = 1.03, 1.0


def result_of(gradients: Gradients, repetitions: int) -> dict[str, Any]:
    """All numbers of ranks and bits."""
    errors = [gradients.errors(ranks, bits, repetitions) for bits, ranks in itertools.product(BITS, RANKS)]
    target = COPIES_TARGET if gradients.kind == "copies" else TARGET
    return {
        "kind": gradients.kind,
        "cosine": gradients.cosine,
        "target": target,
        "errors": [asdict(one) | {"met": one.ratio <= target} for one in errors],
    }


def cells(results: list[dict[str, Any]]) -> list[list[str]]:
    """A heading, then a kind in each line; a cell has one ratio for each of RANKS, bold beyond the target."""
    ranks = ", ".join(map(str, RANKS))
    lines = [[f"error / EDEN's, {ranks} ranks", "cosine", "target", *(f"{bits} + {bits}" for bits in BITS)]]
    for result in results:
        by_bits: dict[int, list[str]] = {}
        for one in result["errors"]:
            ratio = f"{one['ratio']:.3f}"
            by_bits.setdefault(one["bits"], []).append(ratio if one["met"] else f"**{ratio}**")
        target = f"<= {result['target']:g}"
        lines.append([result["kind"], f"{result['cosine']:.2f}", target, *map(" ".join, by_bits.values())])
    return lines


def measured(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Print each as it comes. Real gradients have so many coordinates that a quarter of the repetitions is enough."""
    drawn = () if args.real else synthetic(max(RANKS), COORDINATES)
    for kinds, repetitions in ((drawn, args.repetitions), (real(max(RANKS), args.steps), args.repetitions // 4)):
        for gradients in kinds:
            result = result_of(gradients, repetitions)
            print(" | ".join(cells([result])[1]), flush=True)
            yield result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="of each average, with other signs")
    parser.add_argument("--real", action="store_true", help="only real gradients")
    parser.add_argument("--steps", type=int, default=60, help="of training")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = list(measured(args))
    every = [one for result in results for one in result["errors"]]
    noise, tensor = (max(one[key] for one in every) for key in ("noise", "tensor"))
    missed = sum(not one["met"] for one in every)
    summary = f"{missed} of {len(every)} miss the target. Standard errors are at most {noise:.4f}. "
    summary += f"The largest ratio of a single tensor is {tensor:.3f}."
    publish([*table(cells(results), "lrr" + "l" * len(BITS)), summary, ""], args.json, results=results)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
