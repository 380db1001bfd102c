"""Engines of which a rank gets other buffers: an error on all ranks that names both sides, at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from byteps_thc.tools.launch import ParameterServer

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
    ]


def cases_of_counts(ranks: int) -> list[dict[str, Any]]:
    """Sizes of which one has more norms, or more packets of them."""
    rest, first = ranks - 1, [W, V, T]
    return [
        {"name": "counts", "parameters": [[W, T]] * rest + [[T, W]], "first": first},
        {"name": "counts, the other way round", "parameters": [[T, W]] * rest + [[W, T]], "first": first},
        {"name": "packets", "parameters": [[W, T]] * rest + [[T, W]], "first": first, "small_packets": True},
        {"name": "tensors", "parameters": [[["x", 9000, 5000]]] * rest + [[["x", 9000, 4096]]]},
        {"name": "more of both", "parameters": [[["x", 20_000]]] * rest + [[["x", 20]]], "small_packets": True},
    ]


def check(reports: list[dict[str, Any]]) -> None:
    rest = len(reports) - 1
    for rank, report in enumerate(reports):
        odd = rank == rest
        for name, case in report.items():
            assert case["first"] == "", (name, case)
            # The engine may have ended before it gets its second buffer.
            assert case["error"].startswith(("InputError: ", "TransportError: the engine has ended: ")), (name, case)
            assert f"workers average different gradients: this one (worker {rank})" in case["error"], (name, case)
            assert case["again"].startswith("TransportError: the engine has ended"), (name, case)
            assert (case["gradients"], case["kept"]) == ("as before", True), (name, rank)
            assert IN_ORDER in case["error"]
        own, other = ("'v'", "'w'") if odd else ("'w'", "'v'")
        assert f"{own} (elements 0 to " in report["order"]["error"]
        assert f"another one {other} (elements 0 to " in report["order"]["error"]
        mine = "'y'" if odd else "'x'"
        assert mine in report["names"]["error"]
        assert "another one a gradient that is unknown here" in report["names"]["error"]
        own_round, other_round = (24, 3) if odd else (3, 24)
        assert f"in round {own_round}, another one the same in round {other_round}." in report["step"]["error"]
        assert "the checkpoint of the same step?" in report["step"]["error"]


@pytest.mark.parametrize("ranks", [2, 3])
def test_among_the_ranks(ranks: int, tmp_path: Path) -> None:
    check(run_ranks(PROGRAM, ranks, tmp_path, settings={"cases": cases(ranks)}))


def test_on_a_device(tmp_path: Path) -> None:
    """Codes are sent all the same: averages are NaN, residuals stay, and the next step is an error on all ranks."""
    with_device = [case | {"device": True, "asks": case["name"] == "size"} for case in cases(3)]
    for rank, report in enumerate(run_ranks(PROGRAM, 3, tmp_path, settings={"cases": with_device})):
        for name, case in report.items():
            assert (case["first"], case["error"]) == ("", ""), (name, case)
            assert (case["gradients"], case["kept"]) == ("NaN", True), (name, rank)
            words = f"InputError: workers average different gradients: this one (worker {rank}) "
            assert case["again"].startswith(words), (name, case)
            assert "averages are NaN" in case["again"]
            assert case["asked"] == (case["again"] if name == "size" else "")
            assert case["later"].startswith("the engine has ended: workers average different gradients"), (name, case)
        own, other = ("'v'", "'w'") if rank == 2 else ("'w'", "'v'")
        assert (
            f"{own} (5000 elements) in round 3, another one {other} (5000 elements) in round 3"
            in report["order"]["again"]
        )
        assert ("5001 elements" if rank == 2 else "5000 elements") in report["size"]["again"]
        rounds = (
            "round 24, another one the same in round 3." if rank == 2 else "round 3, another one the same in round 24."
        )
        assert rounds in report["step"]["again"]


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


def test_small_gradients_and_loss_scales_on_a_device(tmp_path: Path) -> None:
    """Averages are NaN; the next step is an error on all ranks."""
    cases = [case | {"device": True} for case in unlabelled_cases(3)]
    for rank, report in enumerate(run_ranks(PROGRAM, 3, tmp_path, settings={"cases": cases})):
        same = report.pop("same scale")
        assert (same["gradients"], same["again"]) == ("averages", "")
        for name, case in report.items():
            assert (case["error"], case["gradients"], case["kept"]) == ("", "NaN", True), (name, rank, case)
            words = f"InputError: workers average different gradients: this one (worker {rank}) "
            assert case["again"].startswith(words), (name, case)
        own, other = ("1024", "2") if rank == 2 else ("2", "1024")
        for name in ("small scale", "scale"):
            assert f", scaled by {own}, another one the same, scaled by {other}. " in report[name]["again"]


@pytest.mark.parametrize("devices", [[], [1], [0, 1]], ids=["host", "one rank on a device", "on a device"])
def test_with_servers(tmp_path: Path, devices: list[int]) -> None:
    """Two of them: names in another order used to go to other servers, to wait there."""
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
        settings = {"servers": [server.address], "cases": with_jobs}
        reports = run_ranks(PROGRAM, ranks, tmp_path, settings=settings)
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
