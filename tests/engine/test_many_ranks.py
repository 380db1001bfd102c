"""More ranks than packets have bits for, on gloo: the same to the bit as the oracle's in one process."""

from pathlib import Path
from typing import Any

import pytest
from gradients import check_case

from thc_lab.ranks import run_ranks

RANKS = 66
PROGRAM = Path(__file__).with_name("engine_rank.py")
CASES: list[dict[str, Any]] = [
    {"name": "default", "thc": {}, "sizes": [[30_000, 12, 2000], [1500]]},
    {"name": "8 bits", "thc": {"bits": 8}, "sizes": [[10_000]]},
]
pytestmark = pytest.mark.slow


def test_the_engine_averages(tmp_path: Path) -> None:
    cases = [case | {"policy": {"deadline_s": 240}, "steps": 2} for case in CASES]
    reports = run_ranks(PROGRAM, RANKS, tmp_path, settings={"cases": cases}, timeout_s=500)
    for case in cases:
        check_case(case, [report[case["name"]] for report in reports])
