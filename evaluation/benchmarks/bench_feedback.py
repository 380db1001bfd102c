"""Is error feedback needed? Losses of small trainings with it and without it; some minutes for each model.

4 workers in one process compress with the package's kernels, as for a server, which adds their codes. Ranks that decode
have no error feedback. For a seed all runs of a model and an optimizer have the same first parameters and batches, so
that "with - without" is taken seed by seed. Learning rates warm up and fall as a cosine; averages are clipped to norm
1, as in the demo.

    PYTHONPATH=evaluation:tests/lib .venv/bin/python evaluation/benchmarks/bench_feedback.py --model mlp
    ... --model cnn --steps 100 --seeds 0 1 --optimizers SGD --bits 2 4
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from averages.servers_averager import ServersAverager
from rich.console import Console
from rich.table import Table
from trainings import small_trainings
from trainings.small_trainings import OPTIMIZERS, SmallTraining

from byteps_thc import ThcConfig
from byteps_thc.arrays import ResidualDtype
from byteps_thc.config import Bits, ResolvedConfig

WORKERS = 4
MODELS = {"mlp": small_trainings.mlp, "cnn": small_trainings.cnn, "gpt": small_trainings.gpt}
#: Where the command line does not say others.
STEPS = {"mlp": 300, "cnn": 200, "gpt": 120}
SEEDS = range(5)
ALL_BITS: tuple[Bits, ...] = (1, 2, 3, 4, 5, 6)
BITS: dict[str, tuple[Bits, ...]] = {"mlp": ALL_BITS, "cnn": ALL_BITS, "gpt": (1, 2, 4, 5)}
#: Two-sided 95 % of Student's distribution, by degrees of freedom.
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
LOSSES = ("train", "validation")
COLUMNS = (
    *("model", "optimizer", "bits"),
    *("training, with", "without", "with - without", "feedback"),
    *("validation, with", "without", "with - without", "feedback"),
)


@dataclass(frozen=True)
class Run:
    """One training. bits: "fp32" without compression. Losses after the last step, in nats."""

    model: str
    optimizer: str
    bits: str
    error_feedback: bool
    seed: int
    steps: int
    train: float
    validation: float


def train(small: SmallTraining, resolved: ResolvedConfig | None) -> tuple[float, float]:
    """Train to the end; return the losses in training and validation. resolved: None for exact averages."""
    training = small.training
    averager = None if resolved is None else ServersAverager(resolved, training.tensors[-1].stop)
    for _ in range(training.steps):
        gradients = training.gradients()
        training.update(gradients.mean(dim=0) if averager is None else averager.average(gradients))
    return small.losses()


def runs_of(args: argparse.Namespace) -> Iterator[Run]:
    """All trainings that the command line asks for, seed by seed."""
    schemes = [(None, False), *((bits, feedback) for bits in args.bits for feedback in (True, False))]
    for seed in args.seeds:
        for optimizer in args.optimizers:
            for bits, feedback in schemes:
                small = MODELS[args.model](WORKERS, args.steps, optimizer, seed)
                resolved = None
                if bits is not None:
                    # The random numbers of THC are of this case alone; --seeds chooses batches and first parameters.
                    config = ThcConfig(
                        bits=bits,
                        error_feedback=feedback,
                        residual_dtype=args.residual_dtype,
                        seed=zlib.crc32(f"{seed} {bits}".encode()),
                    )
                    resolved = config.resolve(WORKERS)
                losses = train(small, resolved)
                yield Run(args.model, optimizer, str(bits or "fp32"), feedback, seed, args.steps, *losses)


def rows_of(runs: list[Run]) -> Iterator[dict[str, Any]]:
    """A line for each model, optimizer and bits: means and deviations over the seeds, and with - without by seed.

    Verdicts: "gains" or "loses" where the 95 % interval of with - without is without 0.
    """
    for model, optimizer, bits in dict.fromkeys((run.model, run.optimizer, run.bits) for run in runs):
        of_case = [run for run in runs if (run.model, run.optimizer, run.bits) == (model, optimizer, bits)]
        row: dict[str, Any] = {"model": model, "optimizer": optimizer, "bits": bits, "steps": of_case[0].steps}
        row["seeds"] = len({run.seed for run in of_case})
        for loss in LOSSES:
            of = {(run.error_feedback, run.seed): getattr(run, loss) for run in of_case}
            seeds = sorted({seed for _, seed in of})
            for feedback, name in ((True, "with"), (False, "without")):
                values = [of[feedback, seed] for seed in seeds if (feedback, seed) in of]
                row[f"{loss}_{name}"] = mean_and_deviation(values)
            pairs = [(of[True, seed], of[False, seed]) for seed in seeds if (True, seed) in of and (False, seed) in of]
            row[f"{loss}_difference"] = interval([a - b for a, b in pairs])
            row[f"{loss}_verdict"] = verdict(row[f"{loss}_difference"])
        yield row


def mean_and_deviation(values: list[float]) -> tuple[float, float] | None:
    """Of the seeds; deviation 0 for one."""
    if not values:
        return None
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def interval(values: list[float]) -> tuple[float, float] | None:
    """Mean and half of its 95 % interval; None for fewer than two values."""
    if len(values) < 2:
        return None
    student = STUDENT[min(len(values) - 1, max(STUDENT))]
    return statistics.mean(values), student * statistics.stdev(values) / math.sqrt(len(values))


def verdict(difference: tuple[float, float] | None) -> str:
    """What error feedback does to a loss."""
    if difference is None or not abs(difference[0]) > difference[1]:
        return ""
    return "gains" if difference[0] < 0 else "loses"


def cells_of(row: dict[str, Any]) -> list[str]:
    """A line of the table: of both losses mean ± deviation with and without, their difference ± interval, verdict."""
    texts = [row["model"], row["optimizer"], row["bits"]]
    for loss in LOSSES:
        for name, sign in (("with", ""), ("without", ""), ("difference", "+")):
            figure = row[f"{loss}_{name}"]
            texts.append("" if figure is None else f"{figure[0]:{sign}.4f} ± {figure[1]:.4f}")
        texts.append(row[f"{loss}_verdict"])
    return texts


def result_of(runs: list[Run]) -> dict[str, Any]:
    """What --json writes."""
    rows = list(rows_of(runs))
    table = {"columns": COLUMNS, "cells": [cells_of(row) for row in rows]}
    return table | {"rows": rows, "runs": [asdict(run) for run in runs]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--optimizers", choices=OPTIMIZERS, nargs="+", default=OPTIMIZERS)
    parser.add_argument("--bits", type=int, choices=get_args(Bits), nargs="+", help="of codes")
    parser.add_argument("--residual-dtype", choices=get_args(ResidualDtype), default="float32")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.steps = args.steps or STEPS[args.model]
    args.seeds = args.seeds if args.seeds is not None else SEEDS
    args.bits = args.bits or BITS[args.model]
    runs: list[Run] = []
    for run in runs_of(args):
        runs.append(run)
        print(json.dumps(asdict(run)), flush=True)
        # After every run: one that is interrupted keeps what it has measured.
        if args.json is not None:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(result_of(runs), indent=1) + "\n")
    table = Table(*COLUMNS, title="Losses with and without error feedback")
    for row in rows_of(runs):
        table.add_row(*cells_of(row))
    Console(width=200).print(table)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
