"""thc doctor --device without a GPU: it says so, and its checks run in Triton's interpreter."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from device_ranks import INTERPRETER
from typer.testing import CliRunner

from byteps_thc._cli.cli import app
from byteps_thc._cli.doctor.device import expectation
from byteps_thc._cli.doctor.finding import State
from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).with_name("device_rank.py")


def findings(ranks: int, folder: Path, wrong: str = "") -> list[Any]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: pip install 'triton>=3.6'")
    settings = {"wrong": wrong}
    reports = run_ranks(PROGRAM, ranks, folder, settings=settings, timeout_s=450, before_import=INTERPRETER)
    assert [report[0] for report in reports] == [reports[0][0]] * ranks
    return list(reports[0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device"], "--device needs a GPU, and PyTorch finds none on this host"),
        (["--device", "--server", "127.0.0.1"], "--server and --device exclude each other"),
    ],
)
def test_one_line_says_what_cannot_be_checked(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "500"})
    assert result.exit_code == 1
    assert result.stdout == ""
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="the host has a GPU")
def test_rank_0_alone_says_which_ranks_have_no_gpu() -> None:
    """torchrun ends the other ranks when one fails: rank 0 prints before."""
    ranks = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*ranks, "-m", "byteps_thc", "doctor", "--device", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    [finding] = json.loads(done.stdout)["findings"]
    wanted = "the host compresses instead; rank 0: PyTorch finds no GPU; rank 1: PyTorch finds no GPU"
    assert (finding["check"], finding["meaning"]) == ("kernels", wanted)
    assert "thc:" not in done.stderr


def test_what_to_expect() -> None:
    faster = expectation(24_000_000, 16, fp32_s=0.08, bf16_s=0.04, thc_s=0.015)
    assert faster.state == State.OK
    assert faster.meaning == (
        "24 M parameters on 16 ranks take 15 ms with THC, 40 ms with bf16, 80 ms with fp32: "
        "expect steps up to 25 ms shorter than with bf16"
    )
    slower = expectation(24_000_000, 8, fp32_s=0.002, bf16_s=0.001, thc_s=0.001)
    assert (slower.state, slower.fails) == (State.PROBLEM, False)
    assert slower.meaning.endswith("expect no gain over bf16 on this network, and use plain DDP")


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["recode", "gather's decode"])
def test_a_wrong_kernel_of_one_rank(wrong: str, tmp_path: Path) -> None:
    [(check, state, meaning)] = findings(2, tmp_path, wrong=wrong)
    assert (check, state) == ("kernels", "problem")
    found = f"rank 1: the GPU's {wrong} kernel has other bits than the host's for float32: "
    assert meaning.endswith(f"{found}update Triton and the GPU's driver")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_bits_bandwidths_and_averages(ranks: int, tmp_path: Path) -> None:
    checks, states, meanings = zip(*findings(ranks, tmp_path), strict=True)
    assert checks == ("kernels", "registers", "bandwidth", "all-reduce")
    assert states[:3] == ("ok",) * 3
    assert meanings[0] == f"have the host's bits on {ranks} ranks"
    shares = r"\d+% to encode torch.float32, \d+% to decode torch.float32, \d+% to encode torch.bfloat16"
    assert re.match(rf"{shares}, .* of the \d+ GB/s of a memcpy$", meanings[2])
    if ranks == 1:
        assert states[3] == "optional"
        return
    # The interpreter takes longer than any network.
    assert re.match(r"2\.\d+ k parameters on 2 ranks take [\d.]+ m?s with THC, [\d.]+ [mu]?s with bf16", meanings[3])
    assert meanings[3].endswith("expect no gain over bf16 on this network, and use plain DDP")
