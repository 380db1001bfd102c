"""Hybrid sharding on 2 x 2 real ranks: shards exact, replicas compressed."""

import pytest
import torch
from known_gradients import all_shapes, gradients, mean_of, nmse
from reports import Reports
from torch import Tensor

BYPASSED = {"first.bias", "second.scale"}
#: The error of 5-bit codes, each way, is 0.005.
NMSE = 0.025


@pytest.fixture
def reports(two_replicas: Reports) -> Reports:
    return two_replicas


def means(step: int = 0) -> dict[str, Tensor]:
    return mean_of([gradients(rank, step, all_shapes()) for rank in range(4)])


def shard_of(rank: int, full: Tensor) -> Tensor:
    """Rank's shard of a parameter, flat; ranks 0 and 1 are the shards of a replica."""
    return [*full.chunk(2), full[:0]][rank % 2].reshape(-1)


@pytest.mark.parametrize(
    ("case", "limit"), [("two_steps", NMSE), ("bfloat16", NMSE), ("other_bits", 0.06), ("network", 0.05)]
)
def test_averages_over_replicas(reports: Reports, case: str, limit: float) -> None:
    averages = reports[0][case]["averages"]
    for name, average in (averages[0] if isinstance(averages, list) else averages).items():
        if name in BYPASSED:
            torch.testing.assert_close(average, means()[name], rtol=1e-2, atol=1e-2)
        else:
            assert 0 < nmse(average, means()[name]) < limit, name


def test_excluded_parameters_are_exact_over_replicas(reports: Reports) -> None:
    for report in reports:
        averages = report["excluded"]["averages"]
        assert nmse(averages.pop("first.weight"), means()["first.weight"]) > 1e-4
        for name, average in averages.items():
            torch.testing.assert_close(average, means()[name])


def test_replicas_are_bit_identical(reports: Reports) -> None:
    for case in ("two_steps", "bfloat16", "other_bits", "both_dimensions", "network"):
        for report in reports[1:]:
            ours, first = report[case]["averages"], reports[0][case]["averages"]
            for step, other in zip(*(a if isinstance(a, list) else [a] for a in (ours, first)), strict=True):
                assert all(torch.equal(step[name], other[name]) for name in other)


def test_states_are_named_by_shard(reports: Reports) -> None:
    assert [report["two_steps"]["scope"] for report in reports] == ["shard0of2", "shard1of2"] * 2
    assert [report["both_dimensions"]["scope"] for report in reports] == ["group0", "group0", "group2", "group2"]
    for rank, report in enumerate(reports):
        sizes = {name: shard_of(rank, torch.empty(shape)).numel() for name, shape in all_shapes().items()}
        assert report["two_steps"]["sizes"] == sizes


def test_resumed_runs_have_the_same_bits(reports: Reports) -> None:
    for report in reports:
        straight, resumed = report["resuming"]["straight"], report["resuming"]["resumed"]
        assert all(torch.equal(average, resumed[name]) for name, average in straight.items())


def test_statistics(reports: Reports) -> None:
    result = reports[0]["two_steps"]
    assert result["steps"] == 2
    assert 4 < result["ratio"] < 6.4  # 4 bits of 32 each way; headers, scales and exact values of small shards


def test_both_dimensions_compressed(reports: Reports) -> None:
    """Each dimension, of 2 ranks, adds its error."""
    for name, average in reports[0]["both_dimensions"]["averages"].items():
        if name not in BYPASSED:
            assert 0 < nmse(average, means()[name]) < 1.5 * NMSE, name


def test_unused_parameters_and_close(reports: Reports) -> None:
    part, closed = reports[0]["unused"]["part"], reports[0]["unused"]["closed"]
    assert "second.weight" not in part
    assert ["module 'second'" in line for line in reports[0]["unused"]["warnings"]] == [True]
    torch.testing.assert_close(part["second.bias"], means()["second.bias"])
    replica = torch.stack([gradients(rank, 0, all_shapes())["head"] for rank in (0, 1)]).mean(dim=0)
    torch.testing.assert_close(closed["head"], replica)  # shards alone, no longer over replicas


def test_gradients_that_are_not_finite(reports: Reports) -> None:
    """They are on all ranks, and no other tensor's are."""
    for report in reports:
        spoiled, later = report["not_finite"]["finite"]
        assert [name for name, finite in spoiled.items() if not finite] == ["second.weight"]
        assert all(later.values())


def test_replicas_are_synchronized_shard_by_shard(reports: Reports) -> None:
    synchronized = [report["synchronized"] for report in reports]
    assert [report["done"] for report in synchronized] == [[False, True]] * 4
    for rank, report in enumerate(synchronized):
        first = synchronized[rank % 2]  # of the same shard
        assert report["after"].keys() == first["before"].keys()
        assert len(first["before"]) > 3 * 6
        for name, tensor in report["after"].items():
            assert torch.equal(tensor, first["before"][name]), name
        for name, tensor in report["next"].items():
            assert torch.equal(tensor, first["next"][name]), name
    assert not torch.equal(synchronized[0]["before"]["first.weight"], synchronized[2]["before"]["first.weight"])
    assert "exp_avg of head" not in synchronized[2]["before"]


def test_what_cannot_be_compressed_is_refused(reports: Reports) -> None:
    for report in reports:
        refusals = report["refusals"]
        wanted = "the mesh has dimensions ('replicate', 'shard'): give the one to compress, mesh['replicate']"
        assert wanted in refusals["which"]
        assert "dim: RankCodes has no such setting, only bits" in refusals["former"]
        assert "shards and replicas of one another" in refusals["same"]
        assert 'fully_shard(module, mesh=mesh["shard"])' in refusals["native"]
        assert "hook already" in refusals["twice"]
        assert "the result of compress_replicas()" in refusals["no handle"]
        assert "the shards of compress_reduce_scatter() are on one rank each" in refusals["no replicas"]
