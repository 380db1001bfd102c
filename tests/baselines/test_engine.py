"""The engine with baselines on real gloo ranks, against all workers of the scheme in this process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from baseline_workers import BUFFERS, Workers, buffer_of
from ranks import run_ranks
from torch import Tensor

from byteps_thc import baselines

RANKS, STEPS, BYPASS = 3, 4, 1024
DENSE = {"NoCompression": torch.float32, "Fp16": torch.float16, "Bf16": torch.bfloat16}
SCHEMES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in DENSE),
    ("TopK", {"ratio": 0.05}),
    ("TopK", {"ratio": 0.05, "error_feedback": False}),
    ("Dgc", {"ratio": 0.05, "clip_norm": 20.0, "warmup_steps_per_ratio": 1}),
    ("TernGrad", {}),
    ("Qsgd", {"bits": 4}),
    ("Qsgd", {"bits": 2, "norm": "l2", "seed": 3}),
    ("SignSgd", {}),
    ("SignSgd", {"variant": "majority"}),
]
Reports = list[list[dict[str, Any]]]

every_scheme = pytest.mark.parametrize("number", range(len(SCHEMES)), ids=[str(scheme) for scheme in SCHEMES])
every_codec = pytest.mark.parametrize(
    "number", range(len(DENSE), len(SCHEMES)), ids=[str(scheme) for scheme in SCHEMES[len(DENSE) :]]
)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What each rank reported of each scheme."""
    policy = {"bypass_elements": BYPASS, "deadline_s": 20.0}
    settings = {"schemes": SCHEMES, "steps": STEPS, "policy": policy}
    program = Path(__file__).with_name("engine_rank.py")
    return run_ranks(program, RANKS, tmp_path_factory.mktemp("ranks") / "engine", settings=settings, timeout_s=200)


def parameters(key: str, buffer: Tensor) -> Tensor:
    """The buffer without padding."""
    return torch.cat([buffer[part.start : part.stop] for part in BUFFERS[key]])


def workers_of(number: int) -> Workers:
    name, options = SCHEMES[number]
    return Workers(getattr(baselines, name)(**options), RANKS, BYPASS)


@every_scheme
def test_ranks_have_the_same_bits(reports: Reports, number: int) -> None:
    for step in range(STEPS):
        for key in BUFFERS:
            of_ranks = [parameters(key, rank[number]["averages"][step][key]) for rank in reports]
            assert all(average.view(torch.int32).equal(of_ranks[0].view(torch.int32)) for average in of_ranks)


@every_codec
def test_averages_are_the_oracles(reports: Reports, number: int) -> None:
    workers = workers_of(number)
    for step in range(STEPS):
        for key in BUFFERS:
            average = parameters(key, reports[0][number]["averages"][step][key])
            torch.testing.assert_close(average, parameters(key, workers.average(key, step)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", DENSE)
def test_dense_averages_are_off_by_roundings_only(reports: Reports, name: str) -> None:
    """RANKS divisions and additions in a type with that epsilon."""
    number = list(DENSE).index(name)
    for key in BUFFERS:
        gradients = [buffer_of(key, 0, rank).gradient.double() for rank in range(RANKS)]
        bound = 2 * RANKS * torch.finfo(DENSE[name]).eps * sum(gradient.abs() for gradient in gradients) / RANKS
        error = (reports[0][number]["averages"][0][key].double() - sum(gradients) / RANKS).abs()
        assert bool((error <= bound).all())


@every_codec
def test_padding_and_the_order_of_parameters_are_left_alone(reports: Reports, number: int) -> None:
    for rank, report in enumerate(reports):
        padding = slice(3101, 3104)
        expected = buffer_of("bucket0", 0, rank).gradient[padding]
        assert report[number]["averages"][0]["bucket0"][padding].equal(expected)


@every_codec
def test_bytes_are_those_of_payloads(reports: Reports, number: int) -> None:
    expected = sum(workers_of(number).sent_bytes(step) for step in range(STEPS))
    for report in reports:
        assert report[number]["sent_bytes"] == report[number]["received_bytes"] == expected
        assert report[number]["coordinates"] == STEPS * (3001 + 2000 + 1501)


@pytest.mark.parametrize("name", DENSE)
def test_bytes_are_those_of_a_ring(reports: Reports, name: str) -> None:
    number = list(DENSE).index(name)
    width = torch.finfo(DENSE[name]).bits // 8
    expected = STEPS * sum(2 * (RANKS - 1) * width * parts[-1].stop // RANKS for parts in BUFFERS.values())
    for report in reports:
        assert report[number]["sent_bytes"] == report[number]["received_bytes"] == expected


@every_scheme
def test_nan_reaches_all_ranks_and_stays_nowhere(reports: Reports, number: int) -> None:
    for report in reports:
        assert bool(report[number]["poisoned"]["bucket0"].isnan().any())
        before, after = report[number]["state"], report[number]["state_after_poison"]
        for store in {"residuals", "momenta"} & before.keys():
            for name in {"a", "c"} & before[store].keys():  # what did not travel with the NaN goes on as ever
                assert after[store][name].equal(before[store][name])


@every_scheme
def test_a_checkpoint_continues_bit_by_bit(reports: Reports, number: int) -> None:
    for report in reports:
        continued, resumed = report[number]["continuations"]
        for key in BUFFERS:
            assert continued[key].equal(resumed[key])


def test_statistics_of_error_feedback(reports: Reports) -> None:
    """NMSE of TopK: what is kept, over gradient plus what was kept before; here for all parameters together."""
    number = SCHEMES.index(("TopK", {"ratio": 0.05}))
    workers = workers_of(number)
    for step in range(STEPS):
        for key in BUFFERS:
            workers.average(key, step)
    for memory, report in zip(workers.memories, reports, strict=True):
        kept = torch.from_numpy(np.concatenate(list(memory.stores["residuals"].state().values())))
        assert report[number]["residual_norm"] == pytest.approx(float(kept.norm()), rel=1e-5)
        assert 0.3 < report[number]["nmse"] < 1
    without = SCHEMES.index(("TopK", {"ratio": 0.05, "error_feedback": False}))
    assert math.isnan(reports[0][without]["nmse"])
