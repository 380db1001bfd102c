"""torch.compile with the hook inside the compiled backward pass: a custom operator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import run_ranks


@pytest.mark.slow
def test_python_reducer_and_the_operator(tmp_path: Path) -> None:
    reports = run_ranks(Path(__file__).with_name("compiled_rank.py"), 2, tmp_path)
    for report in reports:
        assert torch.equal(report["parameters"], reports[0]["parameters"])
        assert report["steps"] == 4
        assert report["rounds"] == reports[0]["rounds"] >= 4
        assert set(report["checks"].values()) == {"SUCCESS"}
