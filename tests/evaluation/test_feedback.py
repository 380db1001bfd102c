"""The smallest run of bench_feedback.py, and the averages that it trains with."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from averages.servers_averager import ServersAverager
from fork_server import start_program

from byteps_thc import ThcConfig

BENCHMARK = Path(__file__).parents[2] / "evaluation/benchmarks/bench_feedback.py"
WORKERS, COORDINATES = 4, 5000


def test_with_feedback_nothing_is_lost() -> None:
    averager = ServersAverager(ThcConfig(bits=2, error_feedback=True).resolve(WORKERS), COORDINATES)
    gradients = torch.randn(3, WORKERS, COORDINATES, generator=torch.Generator().manual_seed(1))
    total = sum(averager.average(of_step) for of_step in gradients)
    residuals = [partition.residual for partition in averager.partitions if partition.residual is not None]
    assert len(residuals) == WORKERS
    kept = np.mean(residuals, axis=0)
    assert np.linalg.norm(kept) > 0.1 * np.linalg.norm(total)
    torch.testing.assert_close(total + torch.from_numpy(kept), gradients.mean(dim=1).sum(dim=0), rtol=0, atol=1e-4)


def test_averages_without_feedback_are_near() -> None:
    averager = ServersAverager(ThcConfig(error_feedback=False).resolve(WORKERS), COORDINATES)
    gradients = torch.randn(WORKERS, COORDINATES, generator=torch.Generator().manual_seed(1))
    exact = gradients.mean(dim=0)
    error = float((averager.average(gradients) - exact).square().sum() / exact.square().sum())
    assert error < 0.02
    assert averager.partitions[0].residual is None


def test_a_small_run_says_what_feedback_does(tmp_path: Path) -> None:
    result, log = tmp_path / "feedback.json", tmp_path / "log"
    options = ["--model", "mlp", "--steps", "60", "--seeds", "0", "1", "--optimizers", "SGD", "--bits", "6"]
    process = start_program(BENCHMARK, *options, "--json", str(result), environment=dict(os.environ), log=log)
    assert process.wait(120.0) == 0, log.read_text()
    measured = json.loads(result.read_text())
    fp32, many = measured["rows"]
    assert [row["bits"] for row in measured["rows"]] == ["fp32", "6"]
    assert fp32["train_with"] is None
    assert fp32["train_without"][0] < math.log(10) / 2  # it has learned something
    for case in ("with", "without"):
        assert many[f"train_{case}"][0] == pytest.approx(fp32["train_without"][0], rel=0.05)
        assert many[f"validation_{case}"][0] == pytest.approx(fp32["validation_without"][0], rel=0.05)
    assert len(measured["runs"]) == 2 * 3
    assert {len(cells) for cells in measured["cells"]} == {len(measured["columns"])}
