"""Frameworks such as Accelerate and Lightning save rank 0's state: gathered(state) has the parts of all ranks."""

from pathlib import Path

import pytest
from reports import Reports, reports_of

RANKS = 2


reports = reports_of(Path(__file__).with_name("frameworks_rank.py"), RANKS, server=True)


@pytest.mark.parametrize(("where", "names"), [("server", {"w", "b", "round"}), ("ranks", {"round"})])
def test_every_rank_gets_its_own_state_back(reports: Reports, where: str, names: set[str]) -> None:
    first, second = reports
    assert "w" not in names or not first[f"saved {where}"]["w"].equal(second[f"saved {where}"]["w"])
    for report in reports:
        saved, loaded = report[f"saved {where}"], report[f"loaded {where}"]
        assert saved.keys() == loaded.keys() == names
        assert saved["round"] > 0
        assert all(saved[name].equal(loaded[name]) and saved[name].dtype == loaded[name].dtype for name in saved)


def test_rank_0_has_all_parts_and_others_none_unless_they_ask(reports: Reports) -> None:
    names = [f"rank{rank}.{entry}" for rank in range(RANKS) for entry in ("header", "residuals.b", "residuals.w")]
    assert [report["everywhere"] for report in reports] == [names, names]
    assert [report["elsewhere"] for report in reports] == [names, []]


def test_a_state_of_one_rank_is_refused_with_the_remedy(reports: Reports) -> None:
    assert reports[0]["one"] == ""  # it is its own
    assert "its worker is 0, here it is 1. Every rank has a state of its own" in reports[1]["one"]
    assert "byteps_thc.checkpoint.gathered(state)" in reports[1]["one"]
    for report in reports:
        assert report["one into gathered"].startswith(
            "ConfigurationError: this is the state of one rank: save gathered"
        )
        assert report["untouched"]
