"""Averages over a mesh of 2 nodes x 2 ranks: exact within a node, THC between the nodes, on real gloo ranks."""

import sys
from pathlib import Path

import pytest
import torch
from known_gradients import gradients, mean_of, nmse
from reports import Reports, reports_of
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from mesh_rank import SHAPES

SIZES = {name: torch.Size(shape).numel() for name, shape in SHAPES.items()}
BYPASSED = {"small", "scalar"}


reports = reports_of(Path(__file__).with_name("mesh_rank.py"), 4, server=True, timeout_s=200)


def exact(step: int) -> dict[str, Tensor]:
    return mean_of([gradients(rank, step, SHAPES) for rank in range(4)])


@pytest.mark.parametrize("case", ["steps", "first_dimension_fast", "other_order", "network"])
def test_all_ranks_have_the_same_bits(reports: Reports, case: str) -> None:
    for report in reports[1:]:
        for mine, first in zip(report[case]["averages"], reports[0][case]["averages"], strict=True):
            assert all(torch.equal(average, first[name]) for name, average in mine.items())


def test_with_a_quorum_the_ranks_of_a_node_have_the_same_bits(reports: Reports) -> None:
    for first, second in (reports[:2], reports[2:]):
        for mine, other in zip(first["quorum"]["averages"], second["quorum"]["averages"], strict=True):
            assert all(average.isfinite().all() and torch.equal(average, other[n]) for n, average in mine.items())


@pytest.mark.parametrize("case", ["steps", "first_dimension_fast", "other_order", "network"])
def test_averages_are_within_thcs_error(reports: Reports, case: str) -> None:
    """Two nodes' codes, of averages with half the variance of a rank's gradient."""
    averages = reports[0][case]["averages"]
    for name, wanted in exact(0).items():
        if name in BYPASSED:
            torch.testing.assert_close(averages[0][name], wanted, rtol=1e-5, atol=1e-5)
        else:
            # Codes of 4 bits, each way among ranks; shards are small.
            assert 0 < nmse(averages[0][name], wanted) < (0.05 if case == "network" else 0.025)


def test_averages_near_the_largest_number_of_float16_stay_finite(reports: Reports) -> None:
    for report in reports:
        result = report["near_the_largest"]
        for name, average in result["finite"].items():
            assert average.isfinite().all()
            assert nmse(average, 65504 * gradients(0, 0, SHAPES)[name].sign()) < 0.05
        assert result["finite"]["even"].abs().max() == 65504
        assert not result["infinite"]["even"].isfinite().all()


def test_it_equals_flat_thc_on_the_exact_shards(reports: Reports) -> None:
    """To the bit; of the flat engine a rank has its shard alone."""
    for rank, report in enumerate(reports):
        result = report["flat_on_shards"]
        for whole, shard in zip(result["averages"]["host"], result["averages"]["flat"], strict=True):
            parts = torch.split(whole, list(SIZES.values()))
            own = [[*part.split(-(-len(part) // 2)), part[:0]][rank % 2] for part in parts]
            assert torch.equal(torch.cat(own), shard)
        assert result["sent_bytes"]["host"] == result["sent_bytes"]["flat"]


def test_unusual_buffers(reports: Reports) -> None:
    """Elements of no parameter stay as they are."""
    for rank, report in enumerate(reports):
        found = {name: average.tolist() for name, average in report["buffers"].items()}
        own = float(rank)
        assert found == {
            "complex": [0j, *(number * (1.5 + 1j) for number in range(1, 5))],
            "one": [1.5],
            "none": [],
            "gaps": [own, *[1.5] * 3, own, own, *[1.5] * 5, own],
        }


def test_some_ranks_average_in_a_mesh_of_their_own(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        assert report["some_ranks"] == ["1.5", *["2.0"] * (rank % 2), "1.5"]


def test_levels_that_differ_are_named_on_all_ranks(reports: Reports) -> None:
    rows, columns = "a mesh of nodes [[0, 1], [2, 3]]", "a mesh of nodes [[0, 2], [1, 3]]"
    wanted = {
        "flat": [rows, rows, rows, "flat"],
        "auto": ["auto", "auto", "auto", rows],
        "dim": [rows, rows, columns, columns],
    }
    for report in reports:
        for name, levels in wanted.items():
            words = ", ".join(f"'{asked}' on rank {rank}" for rank, asked in enumerate(levels))
            for said in report["different_levels"][name]:
                assert said == f"ConfigurationError: ranks have different settings: levels is {words}", name
        for said in report["different_levels"]["refused"]:
            assert "the mesh has no dimension 'rack'" in said


def test_state_is_the_shards(reports: Reports) -> None:
    assert [report["steps"]["scope"] for report in reports] == ["shard0of2", "shard1of2"] * 2
    assert [report["steps"]["worker"] for report in reports] == [0, 0, 1, 1]
    assert [report["other_order"]["scope"] for report in reports] == [f"shard{place}of2" for place in (0, 1, 1, 0)]
    assert [report["first_dimension_fast"]["scope"] for report in reports] == ["shard0of2"] * 2 + ["shard1of2"] * 2
    for rank, report in enumerate(reports):
        result = report["steps"]
        assert result["sizes"] == {name: size // 2 + (size % 2) * (rank % 2 == 0) for name, size in SIZES.items()}
        assert result["workers"] == 2
        assert result["steps"] == 3
        assert result["ratio"] > 4


def test_all_ranks_skip_a_step_in_which_one_shard_is_not_finite(reports: Reports) -> None:
    for report in reports:
        assert report["skipped"] == {"skipped": True, "trained later": True, "scale": 512.0}


def test_replicas_are_all_ranks(reports: Reports) -> None:
    root = reports[0]["synchronized"]
    for rank, report in enumerate(reports):
        result = report["synchronized"]
        assert result["done"]
        assert rank == 0 or not torch.equal(result["before"], root["before"])
        for kind in ("after", "moments"):
            assert all(map(torch.equal, result[kind], root[kind]))
    assert torch.equal(root["after"][0], root["before"])


def test_ranks_of_a_node_without_an_engine_are_named(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        same = "ConfigurationError: ranks have different settings: kernels is "
        everyone = "'host' on rank 0, 'no registers' on rank 1, 'host' on rank 2, 'no registers' on rank 3"
        assert report["broken_engine"] == ("OSError: no registers" if rank % 2 else same + everyone)


REFUSALS = {
    "1-D": 'ConfigurationError: levels=(mesh, "between") needs a mesh of two dimensions, between the nodes and within '
    "them, and this one has 1: make it with init",
    "3-D": "and this one has 3",
    "no dim": 'levels is a DeviceMesh: give "auto", "flat", or a 2-D DeviceMesh and the name of its dimension between',
    "wrong dim": "the mesh has no dimension 'rack', only ('between', 'within')",
    "former": "dim: RankCodes has no such setting, only bits",
    "not a mesh": 'levels is a tuple: give "auto", "flat", or a 2-D DeviceMesh',
    "device": 'CompressionPolicy(kernels="device"): gradients are on cpu',
}


@pytest.mark.parametrize("what", REFUSALS)
def test_wrong_use_says_what_to_do(reports: Reports, what: str) -> None:
    for report in reports:
        assert report["refusals"][what].startswith("ConfigurationError: ")
        assert REFUSALS[what] in report["refusals"][what]


def test_the_mesh_has_the_ranks_of_the_model(reports: Reports) -> None:
    for report in reports[:2]:
        assert "the mesh has ranks [0, 1, 2, 3], and the process group [0, 1]" in report["refusals"]["other ranks"]
