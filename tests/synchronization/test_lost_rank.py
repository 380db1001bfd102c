"""A rank that does not come to a synchronisation is an error for the others, in time."""

from __future__ import annotations

from pathlib import Path

from ranks import Ranks


def test_lost_rank_is_an_error_within_the_deadline(tmp_path: Path) -> None:
    with Ranks(Path(__file__).with_name("lost_rank.py"), 2, tmp_path / "ranks") as ranks:
        report, _ = ranks.wait(killed=(1,))
    late, dead = report["late"], report["dead"]
    assert late["error"] == "DeadlineError"
    assert late["waited_s"] > 5
    assert dead["error"] in ("TransportError", "DeadlineError")
    for lost in (late, dead):
        assert lost["waited_s"] < 30  # the deadline is 6 s
