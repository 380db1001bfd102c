"""More ranks than packets have bits for, on gloo: the same to the bit as the oracle's in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import check_case
from known_gradients import gradients
from rank_oracle import ReduceScatterOracle
from ranks import run_ranks

from byteps_thc import ThcConfig

RANKS = 66
HERE = Path(__file__).parent
CASES: list[dict[str, Any]] = [
    {"name": "default", "thc": {}, "sizes": [[30_000, 12, 2000], [1500]]},
    {"name": "8 bits", "thc": {"bits": 8}, "sizes": [[10_000]]},
]
pytestmark = pytest.mark.slow


def test_the_engine_averages(tmp_path: Path) -> None:
    cases = [case | {"policy": {"deadline_s": 240}, "steps": 2} for case in CASES]
    reports = run_ranks(HERE / "engine_rank.py", RANKS, tmp_path, settings={"cases": cases}, timeout_s=500)
    for case in cases:
        check_case(case, [report[case["name"]] for report in reports])


def test_the_reduce_scatter_averages_rows_and_servers_are_refused(tmp_path: Path) -> None:
    """No server is asked: none is there."""
    columns, thc = 700, {"partition_bytes": 1 << 17}
    settings = {"columns": columns, "steps": 2, "thc": thc}
    reports = run_ranks(HERE / "reduce_scatter_rank.py", RANKS, tmp_path, settings=settings, timeout_s=500)
    oracle = ReduceScatterOracle("matrix", ["w"], [], RANKS, ThcConfig(**thc))
    for step in range(2):
        own = [gradients(rank, step, {"w": (RANKS, columns)}) for rank in range(RANKS)]
        wanted = oracle.averages(own, step, torch.float32)["w"]
        assert torch.equal(torch.stack([report["averages"][step] for report in reports]), wanted), step
    for report in reports:
        assert report["refusal"].startswith("thc-ps sums for at most 64 workers, and a switch for 32, not 66: average")
