"""Dead and late ranks are errors on the others, in time."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import Ranks, run_ranks

PROGRAM = Path(__file__).with_name("failing_rank.py")
DEADLINE_S = 6.0
SLACK_S = 10.0  # of a busy machine


def test_a_killed_rank_is_an_error_of_all_calls(tmp_path: Path) -> None:
    with Ranks(PROGRAM, 3, tmp_path, settings={"what": "killed"}) as ranks:
        reports = ranks.wait(killed=(1,))
    for report in (reports[0], reports[2]):
        first, second, later = report["errors"]
        assert first == second  # both in flight
        assert first.startswith("TransportError: the connection to another rank is lost")
        assert later.startswith("TransportError: the reducer has ended: ")
        assert report["seconds"] < DEADLINE_S + SLACK_S
        assert report["close_seconds"] < SLACK_S


@pytest.mark.slow  # tests/ddp has the same of the engine
def test_a_late_rank_is_an_error_within_the_deadline(tmp_path: Path) -> None:
    first, late = run_ranks(PROGRAM, 2, tmp_path, settings={"what": "late"})
    assert first["errors"][0].startswith("DeadlineError: other ranks did not answer in time")
    assert DEADLINE_S - 1 < first["seconds"] < DEADLINE_S + SLACK_S
    assert late["errors"], "the late rank must not believe that its tensors were averaged"
