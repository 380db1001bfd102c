"""Frameworks such as Accelerate and Lightning save what rank 0 has: gathered(state) has the parts of all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from byteps_thc._cli.launch import ParameterServer

PROGRAM = Path(__file__).with_name("frameworks_rank.py")
RANKS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frameworks")


def run(folder: Path, name: str, ranks: int, *, save: bool) -> list[dict[str, Any]]:
    with ParameterServer() as server:
        settings = {"server": server.address, "folder": str(folder), "save": save}
        return run_ranks(PROGRAM, ranks, folder / name, settings=settings)


@pytest.fixture(scope="module")
def reports(folder: Path) -> list[dict[str, Any]]:
    return run(folder, "saving", RANKS, save=True)


@pytest.mark.parametrize(("where", "names"), [("server", {"w", "b", "round"}), ("ranks", {"round"})])
def test_every_rank_gets_its_own_state_back(reports: list[dict[str, Any]], where: str, names: set[str]) -> None:
    first, second = reports
    assert "w" not in names or not first[f"saved {where}"]["w"].equal(second[f"saved {where}"]["w"])
    for report in reports:
        saved, loaded = report[f"saved {where}"], report[f"loaded {where}"]
        assert saved.keys() == loaded.keys() == names
        assert saved["round"] > 0
        assert all(saved[name].equal(loaded[name]) and saved[name].dtype == loaded[name].dtype for name in saved)


def test_rank_0_has_all_parts_and_others_none_unless_they_ask(reports: list[dict[str, Any]]) -> None:
    names = [f"rank{rank}.{entry}" for rank in range(RANKS) for entry in ("header", "residuals.b", "residuals.w")]
    assert [report["everywhere"] for report in reports] == [names, names]
    assert [report["elsewhere"] for report in reports] == [names, []]


def test_another_number_of_ranks_gets_the_counters_alone(reports: list[dict[str, Any]], folder: Path) -> None:
    (alone,) = run(folder, "alone", 1, save=False)
    assert alone["loaded server"] == {"round": reports[0]["saved server"]["round"]}


def test_a_state_of_one_rank_is_refused_with_the_remedy(reports: list[dict[str, Any]]) -> None:
    assert reports[0]["one"] == "nothing"  # it is its own
    assert "its worker is 0, here it is 1. Every rank has a state of its own" in reports[1]["one"]
    assert "byteps_thc.checkpoint.gathered(state)" in reports[1]["one"]
    for report in reports:
        assert report["one into gathered"].startswith(
            "ConfigurationError: this is the state of one rank: save gathered"
        )
        assert report["untouched"]
