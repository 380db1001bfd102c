"""Buckets of tensors of unlike scales: every tensor errs as much as it would alone, and ranks have the same bits.

tests/compressor/test_block_ends.py has what they would err in blocks that mix them. The averages' bits are checked by
the cases "tensors" of test_all_reduce.py, test_network.py and test_requantized.py.
"""

from __future__ import annotations

from pathlib import Path

from gradients import bits
from ranks import run_ranks

from byteps_thc.tools.launch import ParameterServer

PROGRAM = Path(__file__).with_name("block_ends_rank.py")


def test_front_ends(thc_ps: ParameterServer, tmp_path: Path) -> None:
    first, second = run_ranks(PROGRAM, 2, tmp_path, settings={"server": thc_ps.address})
    for name, report in first.items():
        assert bits(report["average"]) == bits(second[name]["average"]), name
        assert len(report["errors"]) == (5 if name == "ThcReducer" else 3), name
        assert max(report["errors"]) < 0.04, (name, report["errors"])
