"""A late rank and a killed one are errors of all other ranks, in time."""

from pathlib import Path

import pytest

from thc_lab.ranks import Ranks

PROGRAM = Path(__file__).with_name("lost_rank.py")
DEADLINE_S = 6.0
SLACK_S = 10.0  # of a busy machine
LOST = "TransportError: the connection to another rank is lost"


@pytest.mark.parametrize(
    ("front_end", "how", "ranks"),
    [
        ("ddp", "killed", 3),
        ("two_levels", "killed", 4),
        ("reducer", "killed", 3),
        ("synchronization", "killed", 2),
        ("ddp", "late", 2),
        ("fsdp", "late", 2),
        ("synchronization", "late", 2),
    ],
)
def test_a_lost_rank_is_an_error_within_the_deadline(front_end: str, how: str, ranks: int, tmp_path: Path) -> None:
    settings = {"front_end": front_end, "how": how}
    with Ranks(PROGRAM, ranks, tmp_path, settings=settings) as running:
        first, lost, *others = running.wait(killed=(1,) if how == "killed" else ())
    assert how == "killed" or lost["errors"], "the late rank must not believe that its gradient was averaged"
    for report in (first, *others):
        assert report["steps"] == 2
        error, *later = report["errors"]
        if how == "late":
            assert "DeadlineError: other ranks did not answer in time" in error
            assert report["seconds"][0] > DEADLINE_S - 1
        else:
            assert LOST in error or (front_end == "synchronization" and error.startswith("DeadlineError: "))
        ended = f"TransportError: the {'reducer' if front_end == 'reducer' else 'engine'} has ended"
        assert all(each.startswith(ended) for each in later)
        assert len(later) == (front_end in ("ddp", "two_levels", "reducer"))
        assert max(report["seconds"]) < DEADLINE_S + SLACK_S
        assert report["close_seconds"] < DEADLINE_S + SLACK_S
