"""Checkpoints of ranks that summed up each other's codes: steps and rounds go on, residuals are dropped."""

from __future__ import annotations

from pathlib import Path

from ranks import run_ranks


def test_counters_of_earlier_checkpoints_go_on(tmp_path: Path) -> None:
    for report in run_ranks(Path(__file__).with_name("earlier_rank.py"), 2, tmp_path):
        assert report.keys() == {"ddp", "reducer", "fsdp", "hsdp"}
        for front_end, kinds in report.items():
            for kind, result in kinds.items():
                dropped = ["error feedback is off now: the checkpoint's residuals are not taken over"]
                assert result["lines"] == (dropped if kind == "with residuals" else []), front_end
                assert result["loaded"] == [40, 20, False], (front_end, kind)
                assert all(result["kept"].values()), (front_end, kind)
                before, after = result["rounds"]
                assert after == 40 + before, (front_end, kind)  # a step begins as many rounds as before
                assert result["unchanged"], (front_end, kind)
                assert "byteps_thc.checkpoint.load" in result["dcp alone"], (front_end, kind)
                refused = "keeps no residuals" if kind == "with residuals" else "granularity 'auto', here missing"
                assert refused in result["dcp alone"], (front_end, kind)
