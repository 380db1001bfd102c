"""Backward goes on while averages are on their way, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

Reports = list[dict[str, Any]]


@pytest.fixture(params=["two_ranks", pytest.param("four_ranks", marks=pytest.mark.slow)])
def reports(request: pytest.FixtureRequest) -> Reports:
    return request.getfixturevalue(request.param)


def assert_same_bits(one: Any, other: Any, where: str) -> None:
    if isinstance(one, torch.Tensor):
        integers = torch.int32 if one.dtype == torch.float32 else torch.int16
        assert torch.equal(one.view(integers), other.view(integers)), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key, value in one.items():
            assert_same_bits(value, other[key], f"{where} {key}")
    elif isinstance(one, list):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same_bits(a, b, f"{where} {number}")
    else:
        assert one == other, where


def test_averages_that_come_later_have_the_same_bits(reports: Reports) -> None:
    """As those that a hook uses at once, which therefore are waited for."""
    for report in reports:
        for kind, runs in report["asynchronous"].items():
            assert runs[True]["hooks_saw_averages"], kind
            assert_same_bits(runs[False], runs[True], kind)
            gradients = runs[False]["gradients"][0]
            assert all(gradient.any() for gradient in gradients.values() if gradient.numel()), kind


def test_backward_goes_on_before_codes_have_arrived(reports: Reports) -> None:
    for report in reports:
        assert report["overlap"] == {"gave_up": False, "opened": True, "steps": 1}


def test_a_backward_pass_that_fails_leaves_nothing_behind(reports: Reports) -> None:
    for report in reports:
        result = report["failed_backward"]
        assert result["error"] == "out of memory, say"
        assert all(gradient.any() for gradient in result["before"] if gradient.numel())
        assert not any(gradient.any() for gradient in result["after"])


def test_gradients_that_are_taken_away_too_early_are_an_error(reports: Reports) -> None:
    for report in reports:
        assert "use parameter.register_post_accumulate_grad_hook" in report["taken_gradients"]


def test_no_thread_outlives_close(reports: Reports) -> None:
    for report in reports:
        threads = report["closed_threads"]
        assert threads["before"] == threads["after"] < threads["between"]


def test_kernels_on_the_device_are_refused_for_gradients_in_host_memory(reports: Reports) -> None:
    for report in reports:
        assert "gradients are on cpu" in report["not_on_device"]
