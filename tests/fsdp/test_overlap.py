"""Backward continues while averages are on their way, and nothing else changes."""

from reports import Reports
from same_values import assert_same


def test_averages_that_come_later_have_the_same_bits(reports: Reports) -> None:
    """As gradients that a hook uses at once, which are waited for."""
    for report in reports:
        for kind, runs in report["asynchronous"].items():
            assert runs[True]["hooks_saw_averages"], kind
            assert_same(runs[False], runs[True], kind)
            assert all(gradient.any() for gradient in runs[False]["gradients"][0].values() if gradient.numel()), kind


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
