"""A ThcState that is made before there is a process group begins when it is first used."""

from __future__ import annotations

from pathlib import Path

from ranks import run_ranks


def test_a_state_made_before_the_process_group_averages_as_one_made_after(tmp_path: Path) -> None:
    for report in run_ranks(Path(__file__).with_name("early_rank.py"), 2, tmp_path):
        assert all(own.equal(same) for own, same in zip(report["own"], report["same"], strict=True))
        assert (report["steps"], report["counted"]) == (1, 1)
        assert report["said"] == {
            "early": "ThcState(not used yet, ThcConfig(bits=2))",
            "opened": "ThcState(flat, 2 ranks, ThcConfig(bits=2))",
            "state_dict": "call torch.distributed.init_process_group() before ThcState()",
        }
        assert report["model_is_gone"]
