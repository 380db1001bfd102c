"""A dead rank is an error on the others, in time. tests/ddp has late ones."""

from __future__ import annotations

from pathlib import Path

from ranks import Ranks

PROGRAM = Path(__file__).with_name("failing_rank.py")
DEADLINE_S = 6.0
SLACK_S = 10.0  # of a busy machine


def test_a_killed_rank_is_an_error_of_all_calls(tmp_path: Path) -> None:
    with Ranks(PROGRAM, 3, tmp_path) as ranks:
        reports = ranks.wait(killed=(1,))
    for report in (reports[0], reports[2]):
        first, second, later = report["errors"]
        assert first == second  # both in flight
        assert first.startswith("TransportError: the connection to another rank is lost")
        assert later.startswith("TransportError: the reducer has ended: ")
        assert report["seconds"] < DEADLINE_S + SLACK_S
        assert report["close_seconds"] < SLACK_S
