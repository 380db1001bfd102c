"""What the evaluation simulates in one process is what ranks do that train with DDP on gloo."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluation.averagers import Thc, make
from evaluation.trainings import MODELS, train
from ranks import run_ranks
from torch import Tensor

from byteps_thc import ThcConfig
from byteps_thc.block_plan import BlockPlan, block_ends

RANKS, SEED = 4, 3
#: All parameters travel compressed, as in a simulation.
ALL: dict[str, Any] = {"policy": {"bypass_elements": 0}, "steps": 6}
#: Losses fall by .2 nats in these steps, and differ by .0002 from one choice of random numbers to another.
AS_USERS: dict[str, Any] = {"policy": {}, "steps": 24}
LOSS_TOLERANCE = 1e-3
CASES: dict[str, dict[str, Any]] = {
    "default": {"thc": {"seed": 11}, **ALL},
    "2 bits, feedback": {"thc": {"bits": 2, "error_feedback": True, "seed": 12}, **ALL},
    "the paper's table": {"thc": {"granularity": 30, "p": 1 / 32, "rounding": "independent", "seed": 13}, **ALL},
    "as users": {"thc": {"seed": 11}, **AS_USERS},
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    settings = {"seed": SEED, "cases": CASES}
    return run_ranks(
        Path(__file__).with_name("simulation_rank.py"), RANKS, tmp_path_factory.mktemp("ranks"), settings=settings
    )


def simulated(config: ThcConfig, steps: int) -> float:
    """The held-out loss of a simulated training, as the claims do it."""
    small = MODELS["MLP"](RANKS, steps, "SGD", SEED)
    return train(small, make(config, RANKS, small.training.tensors).average).last


def simulated_averages(config: ThcConfig, gradients: Tensor, bucket: tuple[str, list[str]]) -> Tensor:
    """Average float32[ranks, steps, coordinates] step by step. bucket: DDP's, its key and its parameters in order."""
    parameters = dict(MODELS["MLP"](RANKS, 1, "SGD", SEED).training.model.named_parameters())
    starts = list(itertools.accumulate((parameters[name].numel() for name in bucket[1]), initial=0))
    name, plan = f"{bucket[0]}[0:{starts[-1]}]", BlockPlan(block_ends(itertools.pairwise(starts)))
    averager = Thc(config, RANKS, starts[-1], server=False, name=name, plan=plan)
    return torch.stack([averager.average(step.contiguous()) for step in gradients.unbind(1)])


@pytest.mark.parametrize("case", [name for name in CASES if name != "as users"])
def test_ranks_average_what_the_simulation_averages_to_the_bit(reports: list[dict[str, Any]], case: str) -> None:
    """Of the gradients that the ranks had: MKL's products differ in last bits from one process to another.

    Given DDP's order of parameters, and the names by which it chooses random numbers.
    """
    ranks = [report[case] for report in reports]
    first, steps = ranks[0]["buckets"][0], CASES[case]["steps"]
    assert all(rank["buckets"] == [first] * steps for rank in ranks)  # one a step
    gradients = torch.stack([rank["gradients"] for rank in ranks])
    averages = simulated_averages(ThcConfig(**CASES[case]["thc"]), gradients, first)
    for rank in ranks:
        assert torch.equal(rank["averages"], averages)


def test_ranks_have_the_gradients_of_the_simulation(reports: list[dict[str, Any]]) -> None:
    """Of the first step: the same model and batches, each rank its own."""
    training = MODELS["MLP"](RANKS, 1, "SGD", SEED).training
    names = {id(parameter): name for name, parameter in training.model.named_parameters()}
    spans = {names[id(p)]: span for p, span in zip(training.parameters, training.tensors, strict=True)}
    gradients = training.gradients()
    for report, own in zip(reports, gradients, strict=True):
        rank = report["default"]
        in_order = torch.cat([own[spans[name]] for name in rank["buckets"][0][1]])
        torch.testing.assert_close(rank["gradients"][0], in_order, rtol=1e-4, atol=1e-6 * float(own.abs().max()))
    assert all(not torch.allclose(a, b, rtol=0.1) for a, b in itertools.combinations(gradients, 2))


def test_what_a_simulation_leaves_out_hardly_changes_the_loss(reports: list[dict[str, Any]]) -> None:
    """Other random numbers and order, rotation blocks that end at tensors, and small parameters that travel exactly."""
    steps, real = AS_USERS["steps"], reports[0]["as users"]["loss"]
    loss = simulated(ThcConfig(seed=11), steps)
    of_1_bit = simulated(ThcConfig(bits=1, seed=11), steps)
    assert real == pytest.approx(loss, abs=LOSS_TOLERANCE)
    assert abs(of_1_bit - loss) > 10 * LOSS_TOLERANCE  # what a coarser average would give
