"""Simulated DiLoCo agrees with ranks that average with ThcReducer."""

from pathlib import Path

import pytest
import torch
from averages.averagers import FP32, Scheme, make
from averages.ranks import RankCodes
from trainings.outer_steps import train
from trainings.replicas import Replicas

from thc_lab.ranks import run_ranks

WORKERS, INNER, OUTER, SEED, BITS = 2, 2, 2, 1, 4
RANK_PROGRAM = Path(__file__).with_name("diloco_rank.py")


def simulated(scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor]:
    """Parameters before and after."""
    replicas = Replicas.of("GPT", WORKERS, INNER * OUTER, "AdamW", SEED)
    start = replicas.parameters()[0]
    averager = make(scheme, WORKERS, replicas.all[0].training.tensors)
    return start, train(replicas, averager.average, INNER, OUTER).parameters


def test_two_ranks_with_thc_reducer_train_as_simulated(tmp_path: Path) -> None:
    settings = {"inner": INNER, "outer": OUTER, "seed": SEED, "bits": BITS}
    first, second = run_ranks(RANK_PROGRAM, WORKERS, tmp_path, settings=settings)
    assert torch.equal(first, second)
    start, ours = simulated(RankCodes(BITS, BITS))
    _, exact = simulated(FP32)
    # Signs and rounding are others: both err by as much, each from the same exact averages.
    moved = float((exact - start).norm())
    error, theirs = (float((parameters - exact).norm()) for parameters in (ours, first))
    assert 0.02 * moved < error < 0.3 * moved
    assert theirs == pytest.approx(error, rel=0.1)


def test_one_worker_s_first_outer_step_is_its_own_times_rate_and_momentum() -> None:
    replicas, alone = (Replicas.of("GPT", 1, 2, "AdamW", SEED) for _ in range(2))
    start = alone.parameters()[0]
    trained = train(replicas, lambda gradients: gradients[0], 2, 1)
    for _ in range(2):
        alone.update(alone.gradients())
    step = alone.parameters()[0] - start
    # Nesterov's first step: rate * (1 + momentum).
    torch.testing.assert_close(trained.parameters, start + 0.7 * 1.9 * step)
