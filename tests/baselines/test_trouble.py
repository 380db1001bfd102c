"""Schedules, other dtypes, misuse, lost ranks; the report is rank 0's, because rank 1 dies in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks

SIZE = 2000


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    program = Path(__file__).with_name("trouble_rank.py")
    with Ranks(program, 2, tmp_path_factory.mktemp("ranks") / "trouble") as ranks:
        first, second = ranks.wait(killed=(1,))
    assert second is None
    return first


def gradients(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(SIZE, generator=torch.Generator().manual_seed(rank)).to(dtype) for rank in range(2)]


def test_warm_up_and_stop(report: dict[str, Any]) -> None:
    exact = sum(gradients()) / 2
    warm_up, first, second, stopped = report["schedule"]
    assert torch.allclose(warm_up, exact, atol=1e-6)
    assert torch.allclose(stopped, exact, atol=1e-6)
    for compressed in (first, second):
        assert 0.1 * SIZE <= int((compressed != 0).sum()) <= 0.2 * SIZE


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_gradients_stay_narrow(report: dict[str, Any], dtype: torch.dtype) -> None:
    average = report["dtypes"][str(dtype)]
    assert average.dtype == dtype
    exact = sum(gradient.float() for gradient in gradients(dtype)) / 2
    # QSGD with 8 bits: at most 1/127 of the largest magnitude, about 4, of each bucket; and the dtype's rounding.
    assert float((average.float() - exact).abs().max()) < 4 / 127 + 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", ["qsgd", "bf16"])
def test_averages_near_the_largest_number_of_float16_stay_finite(report: dict[str, Any], name: str) -> None:
    averages = report["near_the_largest"]
    assert averages[name].isfinite().all()
    assert averages[name].abs().max() == 65504
    assert not averages[f"{name}, infinite"].isfinite().all()


def test_gradients_of_unknown_parameters_travel_uncompressed(report: dict[str, Any]) -> None:
    assert torch.allclose(report["without_names"], sum(gradients()) / 2, atol=1e-6)


def test_a_single_worker_keeps_its_gradient_and_dgc_its_momentum(report: dict[str, Any]) -> None:
    first, second = report["alone"]
    assert first.equal(torch.ones(SIZE))
    assert second.equal(torch.full((SIZE,), 1.5))


@pytest.mark.parametrize(
    ("case", "kind", "text"),
    [
        ("settings", "ConfigurationError", "ranks have different settings: ratio is 0.1 on rank 0, 0.2 on rank 1"),
        ("scheme", "ConfigurationError", "scheme is 'Qsgd' on rank 0, 'TopK' on rank 1"),
        ("worker", "ConfigurationError", "state does not fit: its worker is 1, here it is 0"),
        ("config", "ConfigurationError", "state does not fit: its config has scheme 'Qsgd', here 'TopK'"),
        ("damaged", "ConfigurationError", "residuals of 'w' is not a finite 1-D float32 tensor"),
        ("matrix", "InputError", "not a contiguous 1-D tensor"),
        ("closed", "TransportError", "the engine has ended: the engine was closed"),
    ],
)
def test_misuse_is_explained(report: dict[str, Any], case: str, kind: str, text: str) -> None:
    assert report["misuse"][case]["kind"] == kind
    assert text in report["misuse"][case]["text"]


def test_a_late_rank_is_an_error_at_the_deadline(report: dict[str, Any]) -> None:
    assert "other ranks did not answer in time" in report["late"]["text"]
    assert 3.5 < report["late"]["seconds"] < 20.0  # the deadline is 4 s


def test_a_dead_rank_is_an_error_now_and_later(report: dict[str, Any]) -> None:
    error, later = report["dead"]["error"], report["dead"]["later"]
    assert "is lost" in error["text"] or "did not answer in time" in error["text"]
    assert error["seconds"] < 20.0
    assert later["kind"] == "TransportError"
    assert later["seconds"] < 5.0  # the deadline is 10 s
