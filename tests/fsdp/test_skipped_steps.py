"""Sharded models when GradScaler skips a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from known_gradients import all_shapes
from ranks import run_ranks


@pytest.mark.slow
def test_all_ranks_skip_the_same_steps(tmp_path: Path) -> None:
    """On all ranks, wherever the gradient that is not finite lies, also in a parameter that travels uncompressed."""
    for report in run_ranks(Path(__file__).with_name("skipped_rank.py"), 4, tmp_path):
        for kind, trained in report.items():
            for name in all_shapes():
                assert not trained[name], (kind, name)
                assert trained[f"after {name}"], (kind, name)
