"""torch.compile leaves FSDP2's reductions as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import run_ranks


@pytest.mark.slow
def test_compiled_models_train_to_the_same_parameters(tmp_path: Path) -> None:
    report, _ = run_ranks(Path(__file__).with_name("compiled_rank.py"), 2, tmp_path / "ranks", timeout_s=200)
    for kind in ("in place", "blocks", "wrapped"):
        for parameter, wanted in zip(report[kind], report["no"], strict=True):
            torch.testing.assert_close(parameter, wanted)
