"""Buckets of tensors of unlike scales: every tensor errs as much as it would alone, and ranks have the same bits.

tests/compressor/test_block_ends.py has what they would err in blocks that mix them. The averages' bits are checked by
the cases "tensors" of test_collective.py and test_network.py.
"""

from __future__ import annotations

from pathlib import Path

from gradients import bits
from ranks import run_ranks

from byteps_thc._cli.launch import ParameterServer

PROGRAM = Path(__file__).with_name("block_ends_rank.py")
LAYER_NORM = ("norm.weight", "norm.bias")


def test_front_ends(thc_ps: ParameterServer, tmp_path: Path) -> None:
    first, second = run_ranks(PROGRAM, 2, tmp_path, settings={"server": thc_ps.address})
    for name, report in first.items():
        assert bits(report["average"]) == bits(second[name]["average"]), name
        sizes, errors = ({tensor: own[i] for tensor, own in report["errors"].items()} for i in range(2))
        assert len(errors) == 7, name
        assert max(sizes.values()) > 9000 * min(sizes.values()), (name, sizes)
        if name == "ddp, thc-ps":  # blocks of 128 at the ends of tensors mix them
            errors = {tensor: error for tensor, error in errors.items() if tensor not in LAYER_NORM}
        else:
            assert name == "ThcReducer" or set(LAYER_NORM) <= errors.keys()
        assert max(errors.values()) < 0.04, (name, errors)
