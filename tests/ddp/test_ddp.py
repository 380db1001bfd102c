"""thc_hook under DistributedDataParallel on real gloo ranks, in the ways people use DDP."""

from pathlib import Path
from typing import Any

import pytest
import torch
from reports import Reports, reports_of

PROGRAM = Path(__file__).with_name("ddp_rank.py")
ON_TWO = [
    "plain",
    "without_names",
    "accumulation",
    "unused_parameters",
    "unused_with_servers",
    "static_graph",
    "wrapped",
    "bfloat16_model",
    "skipped_steps",
    "resumed",
    "compiled",
    "float64_scalar",
    "complex_parameters",
    "excluded",
]
ON_FOUR = ["plain", "subgroups", "skipped_steps"]
NAMES = {f"{layer}.{part}" for layer in ("first", "middle", "last") for part in ("weight", "bias")}


two = reports_of(PROGRAM, 2, server=True, settings={"scenarios": ON_TWO})


four = reports_of(PROGRAM, 4, settings={"scenarios": ON_FOUR})


def of(reports: Reports, scenario: str) -> list[dict[str, Any]]:
    return [report[scenario] for report in reports]


@pytest.mark.parametrize("scenario", ON_TWO)
def test_ranks_stay_identical(two: list[dict[str, Any]], scenario: str) -> None:
    first, second = of(two, scenario)
    assert first["parameters"].isfinite().all()
    assert torch.equal(first["parameters"], second["parameters"])


def test_a_float64_scalar_travels_exactly_and_a_large_one_is_named_when_compression_is_set_up(two) -> None:
    for report in of(two, "float64_scalar"):
        assert report["scale"].dtype == torch.float64
        assert report["scale"].equal(report["exact"])
        assert report["refused"].startswith("ConfigurationError: inner.first.weight is float64 (8192 elements), inner.")


def test_a_residual_waits_for_a_parameter_that_no_rank_uses(two: list[dict[str, Any]]) -> None:
    for report in of(two, "unused_with_servers"):
        assert report["kept"]["middle.weight"]
        assert not report["kept"]["first.weight"]
        assert report["lost"] < 1e-4


def test_complex_parameters_travel_exactly_and_large_ones_are_named(two) -> None:
    for report in of(two, "complex_parameters"):
        for name, kind in (("shift", torch.complex64), ("filter", torch.complex64), ("scale", torch.complex128)):
            average, exact = report[name]
            assert average.dtype == kind
            torch.testing.assert_close(average, exact)
        assert report["refused"].startswith("filter is complex64 (1600 elements): ")
        assert "float64 and complex travel exactly where" in report["refused"]
        assert report["reduced"] == [True, True]
        assert "'shift' is a conjugate view: pass resolve_conj()" in report["conjugate"]


@pytest.mark.parametrize("reports", ["two", "four"])
def test_gradients_are_averaged_and_errors_average_out(reports: str, request: pytest.FixtureRequest) -> None:
    ranks = of(request.getfixturevalue(reports), "plain")
    for report in ranks:
        assert torch.equal(report["parameters"], ranks[0]["parameters"])
        assert 0 < report["error"] < 0.01
        assert report["sum_error"] < report["error"]  # errors of steps have no bias
        assert report["steps"] == 6
        assert report["ratio"] > 3


def test_names_make_no_difference_to_averages(two: list[dict[str, Any]]) -> None:
    named, numbered = of(two, "static_graph")[0], of(two, "without_names")[0]
    assert (named["parameters"] - numbered["parameters"]).norm() < 0.01 * named["parameters"].norm()


def test_excluded_parameters_travel_exactly_beside_others_of_their_bucket(two: list[dict[str, Any]]) -> None:
    for report in of(two, "excluded"):
        exact = {name for name, error in report["errors"].items() if error < 1e-7}
        assert exact == NAMES - {"first.weight"}  # the others are small
    first, second = ([line for line in report["lines"] if "exclude" in line] for report in of(two, "excluded"))
    (line,) = first
    assert line.startswith("CompressionPolicy(exclude): 'nowhere.*' selects none of the 6 parameters")
    assert second == []


def test_ranks_that_exclude_others_are_told_so(two: list[dict[str, Any]]) -> None:
    for report in of(two, "excluded"):
        assert "exclude is ['last'] on rank 0, ['first'] on rank 1" in report["different"]
        assert "give the model" in report["unnamed"]


def test_one_step_per_synchronisation(two: list[dict[str, Any]]) -> None:
    assert [report["steps"] for report in of(two, "accumulation")] == [3, 3]


@pytest.mark.parametrize("reports", ["two", "four"])
def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_on_all_ranks(
    reports: str, request: pytest.FixtureRequest
) -> None:
    """Whichever it is, compressed or not, and in an earlier backward pass of the same step."""
    for report in of(request.getfixturevalue(reports), "skipped_steps"):
        for step, trains in report["trains"].items():
            assert trains != (step in NAMES or step.endswith("pass")), step
        assert report["scaled_by"] == 0.5 ** sum(not trains for trains in report["trains"].values())


def test_a_checkpoint_goes_on_where_it_was(two: list[dict[str, Any]]) -> None:
    for report in of(two, "resumed"):
        assert report["restored"]
        assert report["distance"] < 0.01


def test_subgroups_do_not_mix(four: list[dict[str, Any]]) -> None:
    even, odd, even_too, odd_too = (report["parameters"] for report in of(four, "subgroups"))
    assert torch.equal(even, even_too)
    assert torch.equal(odd, odd_too)
    assert not torch.equal(even, odd)
