"""The evaluation's simulation in one process agrees with ranks that train with DDP on gloo."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from averages.averagers import make
from averages.ranks import RankCodes, RanksAverager
from reports import Reports, reports_of
from torch import Tensor
from trainings.train import MODELS, train

from byteps_thc._scheme.decoding.settings import DEFAULT_BITS
from byteps_thc._scheme.shares import partition_name, random_key

RANKS, SEED = 4, 3
#: All parameters travel compressed, as in a simulation.
ALL: dict[str, Any] = {"policy": {"bypass_elements": 0}, "steps": 6}
#: Losses fall by .2 nats in these steps, and differ by .0002 from one choice of random numbers to another.
AS_USERS: dict[str, Any] = {"policy": {}, "steps": 24}
LOSS_TOLERANCE = 1e-3
CASES: dict[str, dict[str, Any]] = {
    "default": {"thc": {"seed": 11}, **ALL},
    "2 bits": {"thc": {"bits": 2, "seed": 12}, **ALL},
    "3 + 6 bits": {"thc": {"bits": 3, "down_bits": 6, "seed": 13}, **ALL},
    "as users": {"thc": {"seed": 11}, **AS_USERS},
}
BITS = {"default": (DEFAULT_BITS, DEFAULT_BITS), "2 bits": (2, 2), "3 + 6 bits": (3, 6)}


reports = reports_of(Path(__file__).with_name("simulation_rank.py"), RANKS, settings={"seed": SEED, "cases": CASES})


def simulated(scheme: RankCodes, steps: int) -> float:
    """The held-out loss of a simulated training, as the claims do it."""
    small = MODELS["MLP"](RANKS, steps, "SGD", SEED)
    return train(small, make(scheme, RANKS, small.training.tensors).average).last


def simulated_averages(scheme: RankCodes, gradients: Tensor, bucket: tuple[str, list[str]]) -> Tensor:
    """Average float32[ranks, steps, coordinates] step by step. bucket: DDP's, its key and its parameters in order."""
    parameters = dict(MODELS["MLP"](RANKS, 1, "SGD", SEED).training.model.named_parameters())
    starts = list(itertools.accumulate((parameters[name].numel() for name in bucket[1]), initial=0))
    tensors = [slice(*span) for span in itertools.pairwise(starts)]
    key = random_key(partition_name(bucket[0], slice(0, starts[-1])))
    averager = RanksAverager(scheme, tensors, RANKS, tensor=key)
    return torch.stack([averager.average(step.contiguous()) for step in gradients.unbind(1)])


@pytest.mark.parametrize("case", BITS)
def test_ranks_average_what_the_simulation_averages_to_the_bit(reports: Reports, case: str) -> None:
    """With the ranks' gradients, as MKL's products differ between processes, and DDP's order, blocks and key."""
    ranks = [report[case] for report in reports]
    first, steps = ranks[0]["buckets"][0], CASES[case]["steps"]
    assert all(rank["buckets"] == [first] * steps for rank in ranks)  # one a step
    gradients = torch.stack([rank["gradients"] for rank in ranks])
    averages = simulated_averages(RankCodes(*BITS[case], seed=CASES[case]["thc"]["seed"]), gradients, first)
    for rank in ranks:
        assert torch.equal(rank["averages"], averages)


def test_ranks_have_the_gradients_of_the_simulation(reports: Reports) -> None:
    """In the first step: the same model and batches, each rank its own."""
    training = MODELS["MLP"](RANKS, 1, "SGD", SEED).training
    names = {id(parameter): name for name, parameter in training.model.named_parameters()}
    spans = {names[id(p)]: span for p, span in zip(training.parameters, training.tensors, strict=True)}
    gradients = training.gradients()
    for report, own in zip(reports, gradients, strict=True):
        rank = report["default"]
        in_order = torch.cat([own[spans[name]] for name in rank["buckets"][0][1]])
        torch.testing.assert_close(rank["gradients"][0], in_order, rtol=1e-4, atol=1e-6 * float(own.abs().max()))
    assert all(not torch.allclose(a, b, rtol=0.1) for a, b in itertools.combinations(gradients, 2))


def test_what_a_simulation_leaves_out_hardly_changes_the_loss(reports: Reports) -> None:
    """Other random numbers and order, and small parameters that travel exactly."""
    steps, real = AS_USERS["steps"], reports[0]["as users"]["loss"]
    loss = simulated(RankCodes(seed=11), steps)
    of_1_bit = simulated(RankCodes(1, 1, seed=11), steps)
    assert real == pytest.approx(loss, abs=LOSS_TOLERANCE)
    assert abs(of_1_bit - loss) > 2 * LOSS_TOLERANCE  # as a coarser average would differ
