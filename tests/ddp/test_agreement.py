"""Ranks with other parameters or loss scales: an error on all of them, at once, also where nothing is compressed."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import run_ranks

PROGRAM = Path(__file__).with_name("agreement_rank.py")


@pytest.mark.parametrize(
    ("ranks", "odd"), [(2, 1), pytest.param(2, 0, marks=pytest.mark.slow), pytest.param(3, 1, marks=pytest.mark.slow)]
)
def test_an_error_on_all_ranks(ranks: int, odd: int, tmp_path: Path) -> None:
    for rank, report in enumerate(run_ranks(PROGRAM, ranks, tmp_path, settings={"odd": odd})):
        assert report["same scale"]["error"] == ""
        own, other = ("1024", "2") if rank == odd else ("2", "1024")
        for name in ("compressed scale", "scale later"):
            assert f"scaled by {own}, another one the same, scaled by {other}. " in report[name]["error"], name
        assert "in round 1," in report["scale later"]["error"]
        own, other = ("1024", "1") if rank == odd else ("1", "1024")
        assert f"scaled by {own}, another one the same, scaled by {other}. " in report["no scaler"]["error"]
        who = [("1024.0" if number == odd else "2.0", number) for number in range(ranks)]
        scales = ", ".join(f"gradients scaled by {scale} on rank {number}" for scale, number in who)
        for name in ("warm-up scale", "small scale"):
            assert scales in report[name]["error"], (name, report[name])
        for name in ("warm-up names", "small names"):
            error = report[name]["error"]
            # The buckets are filled from the end.
            assert "'b'" in error, (name, error)
            assert "'a'" in error, (name, error)
            assert f"on rank {odd}" in error
        assert not any(case["waited"] for case in report.values()), report
