"""evaluation/gpu_acceptance.py on two gloo ranks: rows of all trainings, and a failure with a loss that is too high."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "evaluation/gpu_acceptance.py"
TORCHRUN = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "failed"), [("", False), ("bits=1", True)])
def test_trainings_beside_fp16(settings: str, failed: bool) -> None:
    variables = {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", "THC_CONFIG": settings}
    command = [*TORCHRUN, str(PROGRAM), "--steps", "40"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode != 0) is failed, done.stdout + done.stderr
    assert ("FAILED:\nDDP, THC: loss" in done.stdout) is failed, done.stdout
    losses = dict(re.findall(r"^((?:DDP|FSDP2), \w+) +([\d.]+) ", done.stdout, re.MULTILINE))
    assert [*losses] == ["DDP, fp16", "DDP, THC", "FSDP2, fp16", "FSDP2, THC"], done.stdout + done.stderr
    assert failed or max(map(float, losses.values())) < 3.5  # log(64 tokens) is 4.16
