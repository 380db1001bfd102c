"""ParameterSynchronizer under bpslaunch."""

from pathlib import Path

import pytest
import torch
from byteps_lab import BytepsLab

from byteps_thc._cli.launch import ParameterServer

pytestmark = pytest.mark.byteps
PROGRAM = Path(__file__).with_name("programs") / "synchronize.py"


def test_workers_are_made_identical(tmp_path):
    with ParameterServer() as thc_ps, BytepsLab(tmp_path, workers=2) as lab:
        lab.start(PROGRAM, str(tmp_path), environment={"THC_SERVERS": thc_ps.address})
        outputs = lab.wait(deadline_s=120)
        assert [worker.status for worker in outputs] == [0, 0], lab.outputs()
        lab.wait_servers()
    first, second = (torch.load(tmp_path / f"synchronized{rank}.pt", weights_only=True) for rank in range(2))
    assert first["done"] == second["done"] == [False, True, False, True]
    assert not torch.equal(first["before"]["model"]["1.running_mean"], second["before"]["model"]["1.running_mean"])
    assert_same(first["before"], first["after"])
    assert_same(first["after"], second["after"])
    for report in (first, second):
        assert "synchronize_every is 2 on rank 0, 3 on rank 1" in report["errors"]["every"]
        assert (
            "weight: torch.float32 [4, 4] on rank 0, weight: torch.float32 [5, 4] on rank 1"
            in report["errors"]["model"]
        )


def assert_same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same(ours[key], theirs[key])
    else:
        assert ours == theirs
