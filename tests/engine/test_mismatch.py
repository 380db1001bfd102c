"""Engines of which a rank gets other buffers: an error on all ranks that names both sides, at once."""

import re
from pathlib import Path
from typing import Any

import pytest

from byteps_thc._cli.launch import ParameterServer
from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).with_name("mismatch_rank.py")
W, V, X, Y, T = ["w", 5000], ["v", 5000], ["x", 5000], ["y", 5000], ["t", 700]
IN_ORDER = "the same on all workers, in the same order"


def cases(ranks: int) -> list[dict[str, Any]]:
    rest = ranks - 1
    return [
        {"name": "order", "parameters": [[W, V]] * rest + [[V, W]]},
        {"name": "names", "parameters": [[X]] * rest + [[Y]]},
        {"name": "size", "parameters": [[["x", 5000]]] * rest + [[["x", 5001]]]},
        {"name": "step", "parameters": [[W, V]] * ranks, "ahead": 21},
        {"name": "keys", "parameters": [[X]] * ranks, "other": "keys"},
    ]


def cases_of_counts(ranks: int) -> list[dict[str, Any]]:
    """Sizes of which one has more norms, or more packets with norms."""
    rest, first = ranks - 1, [W, V, T]
    return [
        {"name": "counts", "parameters": [[W, T]] * rest + [[T, W]], "first": first},
        {"name": "counts, the other way round", "parameters": [[T, W]] * rest + [[W, T]], "first": first},
        {"name": "packets", "parameters": [[W, T]] * rest + [[T, W]], "first": first, "small_packets": True},
        {"name": "tensors", "parameters": [[["x", 9000, 5000]]] * rest + [[["x", 9000, 4096]]]},
        {"name": "more of both", "parameters": [[["x", 20_000]]] * rest + [[["x", 20]]], "small_packets": True},
    ]


def cases_among_ranks(ranks: int) -> list[dict[str, Any]]:
    """Messages of other sizes and numbers, too: gloo ends processes that get one longer than they asked for."""
    rest, same = ranks - 1, [[W]] * ranks
    return [
        *cases(ranks),
        {"name": "order of sizes", "parameters": [[W, T]] * rest + [[T, W]], "first": [W, V, T]},
        {"name": "a longer one", "parameters": [[T]] * rest + [[["x", 50_000]]]},
        {"name": "a shorter one", "parameters": [[["x", 50_000]]] * rest + [[T]]},
        {"name": "tensors", "parameters": [[["x", 9000, 5000]]] * rest + [[["x", 9000, 4096]]]},
        {"name": "what is small", "parameters": [[["x", 5000, 5]]] * rest + [[["x", 5000, 9]]]},
        {"name": "one is small", "parameters": [[["x", 5000]]] * rest + [[["p", 5]]]},
        {"name": "another one is small", "parameters": [[["p", 5]]] * rest + [[["x", 5000]]]},
        {"name": "rows", "parameters": same, "odd": {"row": 50}},
        {"name": "blocks", "parameters": [[X]] * ranks, "other": "blocks"},
        {"name": "dtype", "parameters": same, "odd": {"dtype": "float16"}},
        {"name": "another dtype", "parameters": same, "odd": {"dtype": "bfloat16"}},
        {"name": "small dtype", "parameters": [[["p", 5]]] * ranks, "odd": {"dtype": "bfloat16"}},
    ]


def check(reports: list[dict[str, Any]]) -> None:
    rest = len(reports) - 1
    for rank, report in enumerate(reports):
        odd = rank == rest
        for name, case in report.items():
            assert case["first"] == "", (name, case)
            # The engine may have ended before it gets its second buffer.
            assert case["error"].startswith(("InputError: ", "TransportError: the engine has ended: ")), (name, case)
            different = "ranks average" if name == "small dtype" else "workers average"
            assert f"{different} different gradients" in case["error"], (name, case)
            assert name == "small dtype" or f"this one (worker {rank})" in case["error"], (name, case)
            assert case["again"].startswith("TransportError: the engine has ended"), (name, case)
            assert case["gradients"] == "as before", (name, rank)
            assert case["kept"], (name, rank)
            assert name == "small dtype" or IN_ORDER in case["error"]
        own, other = ("'v'", "'w'") if odd else ("'w'", "'v'")
        assert re.search(rf"{own}[a-z0-9 ]* \(elements 0 to ", report["order"]["error"])
        assert re.search(rf"another one {other}[a-z0-9 ]* \(elements 0 to ", report["order"]["error"])
        assert ("'y'" if odd else "'x'") in report["names"]["error"]
        for case in ("names", "keys"):
            assert "another one a gradient that is unknown here" in report[case]["error"]
        own_round, other_round = (24, 3) if odd else (3, 24)
        assert f"in round {own_round}, another one the same in round {other_round}." in report["step"]["error"]
        assert "the checkpoint of the same step?" in report["step"]["error"]


@pytest.mark.parametrize("ranks", [2, 3])
def test_among_the_ranks(ranks: int, tmp_path: Path) -> None:
    # A gradient more in the second step, and nothing else: the engine may end before the last rank passes two.
    more = {"name": "more rounds", "parameters": [[W]] * (ranks - 1) + [[W, V]], "first": [W, V], "again": [W]}
    reports = run_ranks(PROGRAM, ranks, tmp_path, settings={"cases": [*cases_among_ranks(ranks), more]})
    check_more_rounds([report.pop("more rounds") for report in reports])
    check(reports)
    for rank, report in enumerate(reports):
        odd = rank == ranks - 1
        own, other = ("'t'", "'w'") if odd else ("'w'", "'t'")
        assert re.search(rf"{own}.*another one {other} of float32 \(", report["order of sizes"]["error"])
        assert f"'w' of {'float16' if odd else 'float32'} (elements 0 to" in report["dtype"]["error"]
        # The odd rank has averaged the others' in its first step.
        theirs = "another one 'w' of float32 (elements" if odd else "another one a gradient that is unknown here."
        assert theirs in report["dtype"]["error"]
        assert f"torch.bfloat16 on rank {ranks - 1}" in report["small dtype"]["error"]


def check_more_rounds(reports: list[dict[str, Any]]) -> None:
    *rest, odd = reports
    for rank, report in enumerate(rest):
        assert (report["first"], report["error"]) == ("", "")
        words = f"InputError: workers average different gradients: this one (worker {rank}) 'w' of float32 (elements "
        assert report["again"].startswith(words)
        assert re.search(r"in round 3, another one 'v' of float32 \(.*\) in round 3\.", report["again"])
    assert odd["error"].startswith("InputError: workers average different gradients: this one")
    assert re.search(r"'v' of float32 \(.*\) in round 3, another one 'w' .* in round 3\.", odd["error"])
    assert odd["again"].startswith("TransportError: the engine has ended")


def unlabelled_cases(ranks: int) -> list[dict[str, Any]]:
    """Gradients that have no fingerprint, and loss scales."""
    small, other = [["p", 5]], [["q", 5]]
    return [
        {"name": "small", "parameters": [small] * (ranks - 1) + [other]},
        {"name": "small scale", "parameters": [small] * ranks, "scale": 1024.0},
        {"name": "scale", "parameters": [[W, V]] * ranks, "scale": 1024.0},
        {"name": "same scale", "parameters": [[W, V]] * ranks, "scale": 2.0},
    ]


@pytest.mark.parametrize("network", [False, True])
def test_small_gradients_and_loss_scales(network: bool, tmp_path: Path) -> None:
    with ParameterServer() as server:
        cases = [case | ({"network": job} if network else {}) for job, case in enumerate(unlabelled_cases(3), 1)]
        reports = run_ranks(PROGRAM, 3, tmp_path, settings={"servers": [server.address], "cases": cases})
    for rank, report in enumerate(reports):
        assert report.pop("same scale")["error"] == ""
        for name, case in report.items():
            assert (case["gradients"], case["kept"]) == ("as before", True), (name, rank)
            assert case["again"].startswith("TransportError: the engine has ended"), (name, case)
        assert "'p' on rank 0, 'p' on rank 1, 'q' on rank 2" in report["small"]["error"]
        scales = "gradients scaled by 2.0 on rank 0, gradients scaled by 2.0 on rank 1, gradients scaled by 1024.0 on"
        assert scales in report["small scale"]["error"]
        own, other = ("1024", "2") if rank == 2 else ("2", "1024")
        assert f", scaled by {own}, another one the same, scaled by {other}. " in report["scale"]["error"]


@pytest.mark.parametrize("devices", [[], [1], [0, 1]], ids=["host", "one rank on a device", "on a device"])
def test_with_servers(tmp_path: Path, devices: list[int]) -> None:
    """Two servers: names in another order used to go to other servers, to wait there."""
    with ParameterServer() as first, ParameterServer() as second:
        with_jobs = [case | {"network": job} for job, case in enumerate(cases(2), 1)]
        settings = {"servers": [first.address, second.address], "cases": with_jobs, "devices": devices}
        check(run_ranks(PROGRAM, 2, tmp_path, settings=settings))


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_other_counts_with_servers(tmp_path: Path, ranks: int, threads: str) -> None:
    """The packets of which do not fit each other; all find out by the first one, and no deadline passes."""
    with ParameterServer(["--threads", threads]) as server:
        with_jobs = [case | {"network": job} for job, case in enumerate(cases_of_counts(ranks), 1)]
        reports = run_ranks(PROGRAM, ranks, tmp_path, settings={"servers": [server.address], "cases": with_jobs})
    for rank, report in enumerate(reports):
        for name, case in report.items():
            assert case["first"] == "", (name, case)
            assert "workers average different gradients: this one" in case["error"], (name, case)
            assert case["error"].startswith(("InputError: ", "TransportError: the engine has ended: ")), (name, case)
            assert (case["gradients"], case["kept"]) == ("as before", True), (name, rank)
            if name in ("tensors", "more of both"):
                assert "another one a gradient that is unknown here" in case["error"]
                continue
            odd = (rank == ranks - 1) != (name == "counts, the other way round")
            own, other = ("'t'", "'w'") if odd else ("'w'", "'t'")
            assert re.search(rf"{own} \(.*elements.*another one {other} \(.*elements", case["error"]), case["error"]
