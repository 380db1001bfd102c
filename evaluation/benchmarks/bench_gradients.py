"""What lowers the error of the average at equal bytes, on gradients of the demo's GPT and of a CNN; some minutes.

Trains both models with 4 workers on exact averages, keeps the workers' gradients of some steps early, in the middle and
late, and averages the same gradients with every scheme. Tables are chosen on normal vectors or on the GPT's middle; all
other windows are gradients that nothing was tuned on. --large: models of 11 million parameters, for a GPU.

Schemes are those of servers and switches. bench_eden.py has what ranks that decode do on such gradients.

    PYTHONPATH=evaluation:tests/lib .venv/bin/python evaluation/benchmarks/bench_gradients.py
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from averages.averaging import Scheme, Table
from averages.comparisons import (
    FORMER_TABLES,
    Window,
    best_table,
    max_norm_penalty,
    measure,
    measured_tables,
    normal_tables,
    normal_window,
    rotated_samples,
    sampled,
    windows_of,
)
from trainings import models

WORKERS = 4
BLOCKS = (1024, 4096, 16384, 65536)
CORRELATED_DEVIATION = 0.25
FORMER = "former: independent, block 8192"


@dataclass(frozen=True)
class Case:
    """One line of the table; by_tensor: every tensor is rotated by itself, instead of all as one bucket; ends: rotation
    blocks of a bucket end at tensors, as those of DDP do.
    """

    name: str
    scheme: Scheme
    by_tensor: bool = False
    ends: bool = False


def cases_of(feedback: bool, normal: Window, tuning: Window) -> Iterator[Case]:
    """What is compared; the first is what byteps_thc 0.1 did."""
    former = Scheme(Table.of(FORMER_TABLES[feedback]), error_feedback=feedback)
    stratified = replace(former, rounding="stratified")
    yield Case("independent rounding, block 8192", former)
    for block in BLOCKS:
        yield Case(f"block {block}", replace(former, rotation_block=block))
    yield Case("block 8192, interleaved", replace(former, interleaved=True))
    yield Case("tensor by tensor", former, by_tensor=True)
    yield Case("blocks end at tensors", former, ends=True)
    yield Case("tensor by tensor, block 65536", replace(former, rotation_block=65536), by_tensor=True)
    yield Case("stratified rounding", stratified)
    chosen = replace(stratified, table=best_table(stratified, normal, normal_tables()))
    yield Case("stratified, table for 4 workers", chosen)
    yield Case("stratified, table for 4 workers, tensor by tensor", chosen, by_tensor=True)
    yield Case("stratified, table for 4 workers, blocks end at tensors", chosen, ends=True)
    for group in (64, 128):
        scaled = replace(stratified, scale_group=group)
        tables = measured_tables(rotated_samples(normal, scaled), thresholds=(0.7, 0.8, 0.9, 1.0))
        table = best_table(scaled, normal, tables)
        yield Case(f"stratified, 8-bit scale per {group}", replace(scaled, table=table))
    table = best_table(stratified, normal, measured_tables(rotated_samples(normal, stratified), values=17))
    yield Case("stratified, 17 values", replace(stratified, table=table))
    table = best_table(stratified, tuning, normal_tables())
    yield Case("stratified, (g, p) chosen on GPT middle", replace(stratified, table=table))
    table = best_table(stratified, tuning, measured_tables(rotated_samples(tuning, stratified)))
    yield Case("stratified, table for GPT middle's density", replace(stratified, table=table))


def result_of(case: Case, windows: list[Window]) -> dict[str, Any]:
    """Errors on all windows."""
    scheme = case.scheme
    return {
        "case": case.name,
        "error_feedback": scheme.error_feedback,
        "bits_up": scheme.bits_up,
        "granularity": scheme.table.granularity,
        "p": scheme.table.p,
        "values": scheme.table.values,
        "errors": {
            window.name: asdict(measure(scheme, window, by_tensor=case.by_tensor, ends=case.ends)) for window in windows
        },
    }


def collect(args: argparse.Namespace) -> list[Window]:
    """Gradients of both models, and of the same with workers whose gradients are alike."""
    windows = []
    for make, name in ((models.gpt, "GPT"), (models.cnn, "CNN")):
        training = make(WORKERS, args.steps, large=args.large, device=args.device)
        windows += windows_of(training, name, args.window)
    return [*windows, *(w.correlated(CORRELATED_DEVIATION) for w in windows if w.name.endswith("middle"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="steps of training")
    parser.add_argument("--window", type=int, default=8, help="steps whose gradients are kept, three times")
    parser.add_argument("--large", action="store_true", help="models of 11 million parameters")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    measured = study(args)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(measured, indent=1) + "\n")


def study(args: argparse.Namespace) -> dict[str, Any]:
    """Measure and print cases_of(), with and without feedback."""
    windows = collect(args)
    normal = normal_window(1 << 16, args.window, WORKERS, args.device)
    tuning = sampled(windows[1], 8192, 16, args.window)
    penalties = {window.name: [max_norm_penalty(window, block) for block in (8192, *BLOCKS)] for window in windows}
    about = {window.name: {"cosine": window.cosine, "max_norm_penalty": penalties[window.name]} for window in windows}
    print(json.dumps(about), flush=True)
    results = []
    for feedback in (False, True):
        for case in cases_of(feedback, normal, tuning):
            results.append(result_of(case, [*windows, normal]))
            print(line_of(results[-1], next(r for r in results if r["error_feedback"] == feedback)), flush=True)
    return {"blocks": [8192, *BLOCKS], "windows": about, "results": results}


def line_of(result: dict[str, Any], former: dict[str, Any]) -> str:
    """How many times less it errs than the first case, on every window: all coordinates, and mean of the tensors."""
    ratios = [
        f"{former['errors'][name]['nmse'] / errors['nmse']:.2f}/"
        f"{former['errors'][name]['tensor_nmse'] / errors['tensor_nmse']:.2f}"
        for name, errors in result["errors"].items()
    ]
    feedback = "feedback" if result["error_feedback"] else "none"
    table = f"g={result['granularity']} p=1/{1 / result['p']:.0f}"
    return f"{feedback:8} {result['case']:50} {result['bits_up']:.3f} {table:12} {' '.join(ratios)}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
