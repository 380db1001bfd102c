"""DDP with a codec as its hook: the averages are those of the codec's definition."""

from __future__ import annotations

from pathlib import Path

import torch
from ranks import run_ranks
from torch import Tensor


def top_k(vector: Tensor, count: int) -> Tensor:
    sent = torch.zeros_like(vector)
    largest = vector.abs().topk(count).indices
    sent[largest] = vector[largest]
    return sent


def test_top_k_with_error_feedback_in_ddp(tmp_path: Path) -> None:
    reports = run_ranks(Path(__file__).with_name("codec_hook_rank.py"), 2, tmp_path)
    residuals = [torch.zeros(64 * 50) for _ in reports]
    for steps in zip(*reports, strict=True):
        sent = []
        for residual, step in zip(residuals, steps, strict=True):
            residual += step["own"][0].flatten()
            sent.append(top_k(residual, 320))
            residual -= sent[-1]
        for step in steps:
            weight, bias = step["averages"]
            torch.testing.assert_close(weight.flatten(), sum(sent) / 2)
            torch.testing.assert_close(bias, sum(other["own"][1] for other in steps) / 2)  # small: exact
