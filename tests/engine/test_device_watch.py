"""Devices that average different gradients end with an error; nodes' shards travel over NCCL (device_group.py)."""

from pathlib import Path

import pytest
import torch
from device_ranks import INTERPRETER
from reports import Reports, reports_of

from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).with_name("device_watch_rank.py")


reports = reports_of(PROGRAM, 4, settings={"cases": ["one_level", "two_levels", "host_kernels"]})


@pytest.mark.parametrize("odd", ["new", "large"])
@pytest.mark.parametrize("levels", ["one_level", "two_levels"])
def test_another_gradient_is_an_error_on_all_ranks(reports: Reports, levels: str, odd: str) -> None:
    """In the same step, and before the deadline, when NCCL's watchdog would end the processes."""
    named = {"new": "'new', 4000 elements", "large": "'large', 5000 elements"}[odd]
    errors = {report[levels][odd]["error"] for report in reports}
    assert len(errors) == 1, errors
    [error] = errors
    assert error.startswith("InputError: ranks average different gradients: what differs first is 'weight', 3000")
    assert f"{named}" in error
    assert " on rank 0, " in error
    assert "end all of them, and start again" in error
    assert {report[levels][odd]["step"] for report in reports} == {1}
    assert all({*report[levels][odd]["ended"]} == {"abort"} for report in reports)


def test_one_shards_error_is_an_error_of_all_ranks(reports: Reports) -> None:
    """Gradients of the same sizes hang nowhere, and only the shards of the odd rank's place differ."""
    for report in reports:
        found = report["two_levels"]["other"]
        assert found["error"].startswith("InputError: "), found
        assert found["step"] > 0


def test_shards_travel_over_nccl_whatever_the_kernels(reports: Reports) -> None:
    """With the averages of an exchange in host memory, to which all ranks turn if one has gradients there."""
    for report in reports:
        gpus, mixed, memory = (report["host_kernels"][name] for name in ("GPUs", "mixed", "memory"))
        assert torch.equal(gpus["averages"], reports[0]["host_kernels"]["GPUs"]["averages"])
        assert torch.equal(gpus["averages"], memory["averages"])
        assert torch.equal(mixed["averages"], memory["averages"])
        scattered, gathered = gpus["calls"]
        sizes = [4 * size for size in (3000, 5000)] * 2
        assert scattered == [f"all-to-all {size}" for size in sizes]
        assert gathered == [f"all-gather {size // 2}" for size in sizes]
        assert mixed["calls"] == memory["calls"] == []
        assert mixed["gloo"] == memory["gloo"] == gpus["gloo"] + 3  # two within the node, and a question between them


@pytest.mark.slow
def test_an_unused_parameter_of_one_rank_is_an_error_on_all(tmp_path: Path) -> None:
    for report in run_ranks(PROGRAM, 2, tmp_path, settings={"cases": ["rows"]}, before_import=INTERPRETER):
        found = report["rows"]
        assert found["step"] == 2
        assert "InputError: ranks average different gradients: what differs first is " in found["error"]
        assert "All ranks must run the same modules" in found["error"]
