"""Ranks that go on from checkpoints of different steps: an error on all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import run_ranks

from byteps_thc.tools.launch import ParameterServer


@pytest.mark.slow
def test_steps_of_other_checkpoints(thc_ps: ParameterServer, tmp_path: Path) -> None:
    program = Path(__file__).with_name("mismatch_rank.py")
    for rank, report in enumerate(run_ranks(program, 2, tmp_path, settings={"servers": [thc_ps.address]})):
        for kind, error in report.items():
            own, other = (10, 3) if rank else (3, 10)
            assert f"different gradients: this one (worker {rank}) " in error, (kind, error)
            assert f" in round {own}, another one the same in round {other}." in error, (kind, error)
