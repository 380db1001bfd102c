"""Engines of which a rank gets other buffers: an error on all ranks that names both sides, at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from byteps_thc.tools.launch import ParameterServer

PROGRAM = Path(__file__).with_name("mismatch_rank.py")
W, V, X, Y = ["w", 5000], ["v", 5000], ["x", 5000], ["y", 5000]
IN_ORDER = "the same on all workers, in the same order"


def cases(ranks: int) -> list[dict[str, Any]]:
    rest = ranks - 1
    return [
        {"name": "order", "parameters": [[W, V]] * rest + [[V, W]]},
        {"name": "names", "parameters": [[X]] * rest + [[Y]]},
        {"name": "size", "parameters": [[["x", 5000]]] * rest + [[["x", 5001]]]},
        {"name": "step", "parameters": [[W, V]] * ranks, "ahead": 21},
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


@pytest.mark.parametrize("devices", [[], [1], [0, 1]], ids=["host", "one rank on a device", "on a device"])
def test_with_servers(tmp_path: Path, devices: list[int]) -> None:
    """Two of them: names in another order used to go to other servers, to wait there."""
    with ParameterServer() as first, ParameterServer() as second:
        with_jobs = [case | {"network": job} for job, case in enumerate(cases(2), 1)]
        settings = {"servers": [first.address, second.address], "cases": with_jobs, "devices": devices}
        check(run_ranks(PROGRAM, 2, tmp_path, settings=settings))
