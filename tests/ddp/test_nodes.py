"""Which ranks share a node is found, and decides whether averages take two levels or one."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from byteps_thc._engine.levels import chosen_levels, group_by_node, has_two_levels
from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).with_name("nodes_rank.py")
SIZES = {"0.weight": 8000, "0.bias": 80, "1.weight": 4000, "1.bias": 50}


Run = Callable[[str, str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return reports of the ranks of a case; its other argument has a letter for each rank, its node's name."""

    @functools.cache
    def reports(case: str, nodes: str) -> list[dict[str, Any]]:
        settings = {"case": case, "nodes": [*nodes]}
        folder = tmp_path_factory.mktemp(case) / "ranks"
        results: list[dict[str, Any]] = run_ranks(PROGRAM, len(nodes), folder, settings=settings, timeout_s=200)
        return results

    return reports


@pytest.mark.parametrize("nodes", ["aabb", "abab", "abba"])
def test_two_levels_are_those_of_a_mesh_wherever_ranks_are(nodes: str, run: Run) -> None:
    for rank, report in enumerate(results := run("one_way", nodes)):
        found, mesh, flat = report["found"], report["mesh"], report["flat"]
        assert found["said"] == mesh["said"]
        assert mesh["said"].startswith("ThcState(2 nodes of 2 ranks, ")
        assert torch.equal(found["averages"], results[0]["found"]["averages"])
        assert (found["averages"] - flat["averages"]).square().sum() < 0.05 * flat["averages"].square().sum()
        if nodes != "abba":  # torch numbers the ranks of shard 1 the other way round there: other random bits
            assert torch.equal(found["averages"], mesh["averages"])
        assert found["sizes"] == {name: size // 2 for name, size in SIZES.items()}
        place = nodes[:rank].count(nodes[rank])
        assert found["scope"] == mesh["scope"] == f"shard{place}of2"
        assert flat["said"].startswith("ThcState(flat, 4 ranks, ")
        for state in (found, flat):
            assert state["closed"] == state["said"].removesuffix(")") + ", closed)"
        assert flat["scope"] is None
        assert flat["sizes"] == SIZES
        assert flat["sent"] > found["sent"]  # by a rank: of codes of all coordinates
        assert not torch.equal(flat["averages"], found["averages"])


def test_rank_0_logs_what_was_chosen(run: Run) -> None:
    for rank, report in enumerate(run("one_way", "abab")):
        two = "averages are exact within each of 2 nodes of 2 ranks, compressed between them"
        two += ' (levels="auto": an average took 100.0 ms in two levels, 200.0 ms in one)'
        one = "averages are compressed over 4 ranks on 2 nodes, in one level"
        assert report["found"]["lines"] == ([] if rank else [two])
        assert report["flat"]["lines"] == ([] if rank else [one])  # which costs less than bf16 here: no warning
        assert report["mesh"]["lines"] == []


@pytest.mark.parametrize("case", ["slow levels", "fast levels", "real"])
def test_auto_takes_the_faster_way_on_all_ranks(case: str, run: Run) -> None:
    """Ranks measure different times: the slowest rank's times count."""
    reports = [report[case] for report in run("measured", "aabb")]
    two = reports[0]["said"].startswith("ThcState(2 nodes of 2 ranks, ")
    assert two or reports[0]["said"].startswith("ThcState(flat, 4 ranks, ")
    number = r"(\d+\.\d)"
    words = rf'.* \(levels="auto": an average took {number} ms in two levels, {number} ms in one\)'
    (line,) = reports[0]["lines"]
    assert (match := re.fullmatch(words, line)), line
    assert two == (float(match[1]) <= float(match[2]))
    assert ("within each of 2 nodes of 2 ranks" if two else "over 4 ranks on 2 nodes, in one level") in line
    if case != "real":
        assert match.groups() == (("400.0", "300.0") if case == "slow levels" else ("400.0", "500.0"))
    for report in reports:
        assert report["said"] == reports[0]["said"]
        assert torch.equal(report["averages"], reports[0]["averages"])
    assert all(report["lines"] == [] for report in reports[1:])


def test_only_auto_measures_and_only_where_there_is_a_choice(run: Run) -> None:
    for report in run("measured", "aabb"):
        assert report["calls"] == {"slow levels": 1, "fast levels": 1, "flat": 0, "far": 0}


def test_ranks_that_are_far_from_each_other_take_two_levels_without_measuring(run: Run) -> None:
    """A start took 17 to 23 s at 100 ms of round trip and 20 Mb/s, 15 s to measure."""
    for rank, report in enumerate(run("measured", "aabb")):
        assert report["far"]["said"].startswith("ThcState(2 nodes of 2 ranks, ")
        two = "averages are exact within each of 2 nodes of 2 ranks, compressed between them"
        far = ' (levels="auto": ranks take 200 ms for a word, so the network is slow)'
        assert report["far"]["lines"] == ([] if rank else [two + far])
    for report in run("uneven", "aba"):
        assert report["calls"] == 0


def test_uneven_nodes_are_flat_and_told_once(run: Run) -> None:
    for rank, report in enumerate(run("uneven", "aba")):
        assert report["auto"]["said"].startswith("ThcState(flat, 3 ranks, ")
        assert torch.equal(report["auto"]["averages"], report["flat"]["averages"])
        one = "averages are compressed over 3 ranks on 2 nodes, in one level"
        warning = (
            "nodes have different numbers of ranks (2, 1), so averages are compressed over all ranks in one level, "
            "which sends more than two levels would: start as many ranks on every node"
        )
        assert report["auto"]["lines"] == ([] if rank else [one, warning])
        assert report["again"]["lines"] == report["flat"]["lines"] == ([] if rank else [one])


def test_the_log_says_how_many_nodes_there_are() -> None:
    assert chosen_levels(["boot 4:1"] * 4, two=False) == "averages are compressed over 4 ranks on 1 node, in one level"
    hosts = [f"boot{host} 4:1" for host in range(4)]
    assert chosen_levels(hosts, two=False) == "averages are compressed over 4 ranks on 4 nodes, in one level"
    assert chosen_levels([f"boot{number // 2} 4:{number}" for number in range(4)], two=False) == (
        "averages are compressed over 4 ranks on 4 nodes, in one level; they are on 2 hosts, where containers have "
        "networks of their own: start all ranks of a host in one, or let them share a network (--net=host), or give a "
        "mesh"
    )


def test_states_of_other_levels_are_refused_with_what_to_do(run: Run) -> None:
    for rank, report in enumerate(run("loading", "aabb")):
        refused = "ConfigurationError: state does not fit: its scope is "
        assert report["flat state"].startswith(f"{refused}None, here it is 'shard{rank % 2}of2'")
        assert report["flat state"].endswith('levels="flat" loads it')
        assert report["node's state"].startswith(f"{refused}'shard{rank % 2}of2', here it is None: it was saved")
        assert report["neighbour's state"].startswith(f"{refused}'shard{1 - rank % 2}of2'")
        assert report["own state"] == ""


def test_checkpoints_of_subgroups_need_a_name_and_are_kept_apart(run: Run) -> None:
    """Two stages of two nodes of two ranks, whose shards have the same names."""
    for report in run("subgroups", "aabbccdd"):
        assert report["unnamed"].startswith("ConfigurationError: the state is of 4 of 8 ranks: give scope=...")
        assert report["loaded"] == report["by dcp"] == ""
        assert report["saved"] == report["now"]
        assert report["now"]["step"] == 2


def test_wrong_use_says_what_to_do(run: Run) -> None:
    for report in run("refused", "ab"):
        different = "ConfigurationError: ranks have different settings: "
        assert report["differ"] == f"{different}levels is 'auto' on rank 0, 'flat' on rank 1"
        assert report["unknown"].startswith('ConfigurationError: levels is \'racks\': give "auto", "flat", or a')
        assert report["bits"] == f"{different}bits is 3 on rank 0, 4 on rank 1"


@pytest.mark.parametrize(
    ("names", "nodes", "two"),
    [
        ("aaaa", [[0, 1, 2, 3]], False),
        ("abcd", [[0], [1], [2], [3]], False),
        ("aabb", [[0, 1], [2, 3]], True),
        ("bacbca", [[0, 3], [1, 5], [2, 4]], True),
        ("aabbc", [[0, 1], [2, 3], [4]], False),
        ("a", [[0]], False),
    ],
)
def test_nodes_of_ranks(names: str, nodes: list[list[int]], two: bool) -> None:
    assert group_by_node([*names]) == nodes
    assert has_two_levels(nodes) == two
