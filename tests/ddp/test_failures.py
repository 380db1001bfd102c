"""Dead and late ranks, a world of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import Ranks, run_ranks

PROGRAM = Path(__file__).with_name("failing_rank.py")
DEADLINE_S = 6.0
SLACK_S = 10.0  # of a busy machine


@pytest.mark.parametrize(("ranks", "nodes"), [(3, None), (4, 2)])
def test_a_killed_rank_is_an_error_on_the_others(ranks: int, nodes: int | None, tmp_path: Path) -> None:
    with Ranks(PROGRAM, ranks, tmp_path, settings={"what": "killed", "nodes": nodes}) as running:
        reports = running.wait(killed=(1,))
    for report in (reports[0], *reports[2:]):
        assert report["steps"] == 2
        first, second = report["errors"]
        assert first["type"] == "RuntimeError"  # all that torch lets a future's error become
        assert "TransportError: the connection to another rank is lost" in first["text"]
        assert second["type"] == "TransportError"
        assert "the engine has ended" in second["text"]
        assert report["seconds"] < DEADLINE_S + SLACK_S
        assert report["close_seconds"] < DEADLINE_S + SLACK_S


def test_a_late_rank_is_an_error_within_the_deadline(tmp_path: Path) -> None:
    reports = run_ranks(PROGRAM, 2, tmp_path, settings={"what": "late"})
    first = reports[0]
    assert first["steps"] == 2
    assert "DeadlineError: other ranks did not answer in time" in first["errors"][0]["text"]
    assert DEADLINE_S - 1 < first["seconds"] < DEADLINE_S + SLACK_S
    assert reports[1]["errors"], "the late rank must not believe that its gradient was averaged"


def test_a_world_of_one(tmp_path: Path) -> None:
    (report,) = run_ranks(PROGRAM, 1, tmp_path, settings={"what": "alone"})
    assert report["equal"]
    dtype, shape, overlap = report["refused"]
    assert "float64, not float32" in dtype
    assert "1-D" in shape
    assert "ascending and disjoint" in overlap
