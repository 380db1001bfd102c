"""ThcReducer among 2 nodes of 2 ranks: in two levels, as it finds them, and in one."""

from pathlib import Path

import pytest
import torch
from reports import Reports, reports_of

reports = reports_of(Path(__file__).with_name("levels_rank.py"), 4, timeout_s=200)


@pytest.mark.parametrize("case", ["auto", "flat"])
def test_all_ranks_have_the_same_averages_within_thcs_error(reports: Reports, case: str) -> None:
    for report in reports:
        for name, average in report[case]["averages"].items():
            assert torch.equal(average, reports[0][case]["averages"][name]), name
        for name, error in report[case]["nmse"].items():
            assert error < (1e-9 if name == "small" else 0.028), name
        where = "2 nodes of 2 ranks" if case == "auto" else "flat, 4 workers"
        assert report[case]["said"] == f"ThcReducer({where})"
        assert report[case]["closed"] == f"ThcReducer({where}, closed)"


def test_ranks_that_pass_different_tensors_get_an_error_and_go_on(reports: Reports) -> None:
    for report in reports:
        a, b = "'a' (2000 elements, torch.float32)", "'a' (2001 elements, torch.float32)"
        who = f"what differs first is {a} on rank 0, {a} on rank 1, {a} on rank 2, {b} on rank 3"
        assert report["mismatch"]["refused"].startswith("InputError: ranks average different tensors.")
        assert who in report["mismatch"]["refused"]
        assert report["mismatch"]["error"] < 1e-3
        assert report["mismatch"]["waited"] == [True, True]


def test_steps_begin_while_earlier_ones_are_on_their_way(reports: Reports) -> None:
    for report in reports:
        first, second, *others = report["warm_up"]["errors"]
        assert max(first, second) < 1e-12
        assert min(others) > 1e-6
        assert report["warm_up"]["steps"] == 5
