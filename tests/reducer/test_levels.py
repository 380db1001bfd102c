"""ThcReducer in two levels, 2 nodes of 2 ranks: nodes that are found, and those of a mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks

Reports = list[dict[str, Any]]
SIZES = {"odd": 3001, "matrix": 2400, "small": 11, "large": (1 << 20) + 3, "half": 3000}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return run_ranks(
        Path(__file__).with_name("levels_rank.py"), 4, tmp_path_factory.mktemp("levels") / "ranks", timeout_s=200
    )


@pytest.mark.parametrize("case", ["found", "mesh", "flat"])
def test_all_ranks_have_the_same_averages_within_thcs_error(reports: Reports, case: str) -> None:
    for report in reports:
        for name, average in report[case]["averages"].items():
            assert torch.equal(average, reports[0][case]["averages"][name]), name
        for name, error in report[case]["nmse"].items():
            assert error < (1e-9 if name == "small" else 0.028), name


def test_found_nodes_and_a_mesh_are_the_same(reports: Reports) -> None:
    for report in reports:
        found, mesh = report["found"], report["mesh"]
        assert found["said"] == mesh["said"] == "ThcReducer(2 nodes of 2 ranks)"
        assert report["flat"]["said"] == "ThcReducer(flat, 4 workers)"
        assert found["closed"] == "ThcReducer(2 nodes of 2 ranks, closed)"
        assert report["flat"]["closed"] == "ThcReducer(flat, 4 workers, closed)"
        assert found["averages"].keys() == mesh["averages"].keys()
        assert all(torch.equal(tensor, mesh["averages"][name]) for name, tensor in found["averages"].items())


def test_state_is_the_shards(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        found, flat = report["found"], report["flat"]
        shards = {name: size // 2 + (size % 2) * (rank % 2 == 0) for name, size in SIZES.items()}
        assert found["sizes"] == shards | {"empty": 0}
        assert (found["scope"], found["workers"]) == (f"shard{rank % 2}of2", 2)
        assert (flat["scope"], flat["workers"]) == (None, 4)
        assert flat["sent"] > 1.9 * found["sent"]


def test_a_mesh_may_have_some_of_the_ranks(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        assert float((report["some_ranks"] - (0.5 if rank < 2 else 2.5)).square().mean()) < 0.1


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


def test_a_checkpoint_goes_on_bit_for_bit(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        assert report["resumed"]["same"]
        assert f"its scope is 'shard{1 - rank % 2}of2'" in report["resumed"]["other"]


REFUSALS = {
    "other ranks": "the mesh has ranks [0, 1, 2, 3], and the process group [",
    "worker": "worker and workers are for training without a process group: omit them",
    "servers": "the mesh has no dimension 'no'",
}


@pytest.mark.parametrize("what", REFUSALS)
def test_wrong_use_says_what_to_do(reports: Reports, what: str) -> None:
    for report in reports:
        assert report["refusals"][what].startswith("ConfigurationError: ")
        assert REFUSALS[what] in report["refusals"][what]
