"""What the evaluation simulates in one process is what ranks do that train with DDP on gloo."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluation.averagers import Averager, Thc, make
from evaluation.trainings import MODELS, train
from ranks import run_ranks
from torch import Tensor

from byteps_thc import ThcConfig
from byteps_thc.block_ends import block_ends

RANKS, SEED = 4, 3
#: All parameters travel compressed, as in a simulation.
ALL = {"policy": {"bypass_elements": 0}, "steps": 6}
#: Losses fall by .2 nats in these steps, and differ by .0002 from one choice of random numbers to another.
AS_USERS = {"policy": {}, "steps": 24}
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


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As ranks have, whose products then are the same to the bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def simulated(config: ThcConfig, steps: int, bucket: tuple[str, list[str]] | None = None) -> tuple[Tensor, float]:
    """Averages of all steps, and the held-out loss. bucket: DDP's, its key and parameters; None: as the claims do."""
    small = MODELS["MLP"](RANKS, steps, "SGD", SEED)
    training = small.training
    order = torch.arange(training.tensors[-1].stop)
    averager: Averager = make(config, RANKS, training.tensors)
    if bucket is not None:
        names = {id(parameter): name for name, parameter in training.model.named_parameters()}
        spans = {names[id(p)]: span for p, span in zip(training.parameters, training.tensors, strict=True)}
        order = torch.cat([order[spans[name]] for name in bucket[1]])
        starts = list(itertools.accumulate((spans[n].stop - spans[n].start for n in bucket[1]), initial=0))
        name, ends = f"{bucket[0]}[0:{len(order)}]", block_ends(itertools.pairwise(starts))
        averager = Thc(config, RANKS, len(order), server=False, name=name, ends=ends)
    averages = []

    def average(gradients: Tensor) -> Tensor:
        found = torch.empty_like(gradients[0])
        found[order] = averager.average(gradients[:, order].contiguous())
        averages.append(found)
        return found

    loss = train(small, average).last
    return torch.stack(averages), loss


@pytest.mark.parametrize("case", [name for name in CASES if name != "as users"])
def test_ranks_average_what_the_simulation_averages_to_the_bit(reports: list[dict[str, Any]], case: str) -> None:
    """Given DDP's order of parameters, and the names by which it chooses random numbers."""
    first, steps = reports[0][case]["buckets"][0], CASES[case]["steps"]
    assert all(report[case]["buckets"] == [first] * steps for report in reports)  # one a step
    averages, loss = simulated(ThcConfig(**CASES[case]["thc"]), steps, first)
    for report in reports:
        assert torch.equal(report[case]["averages"], averages)
        assert report[case]["loss"] == loss


def test_what_a_simulation_leaves_out_hardly_changes_the_loss(reports: list[dict[str, Any]]) -> None:
    """Other random numbers and order, rotation blocks that end at tensors, and small parameters that travel exactly."""
    steps, real = AS_USERS["steps"], reports[0]["as users"]["loss"]
    _, loss = simulated(ThcConfig(seed=11), steps)
    _, of_1_bit = simulated(ThcConfig(bits=1, seed=11), steps)
    assert real == pytest.approx(loss, abs=LOSS_TOLERANCE)
    assert abs(of_1_bit - loss) > 10 * LOSS_TOLERANCE  # what a coarser average would give
