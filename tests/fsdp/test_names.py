"""Ranks whose parameters have other names: they would average gradients of different parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import run_ranks

PROGRAM = Path(__file__).with_name("names_rank.py")


@pytest.mark.parametrize(
    ("ranks", "odd"), [(2, 1), pytest.param(2, 0, marks=pytest.mark.slow), pytest.param(3, 1, marks=pytest.mark.slow)]
)
def test_the_error_names_both_sides_on_all_ranks(ranks: int, odd: int, tmp_path: Path) -> None:
    def on(usual: str, other: str) -> str:
        return ", ".join(f"{other if rank == odd else usual} on rank {rank}" for rank in range(ranks))

    def parameter(name: str, rows: int = 32, columns: int = 64) -> str:
        return f"'{name}' [{rows}, {columns}] sharded in dimension 0"

    for rank, report in enumerate(run_ranks(PROGRAM, ranks, tmp_path, settings={"odd": odd})):
        assert report["same"]["error"] == ""
        wanted = {
            "order": on(parameter("a"), parameter("b")),
            "names": on(parameter("b"), parameter("c")),
            "shape": on(parameter("b"), parameter("b", 64, 32)),
            "warm-up": on(parameter("a"), parameter("b")),
            "small": on(parameter("b"), parameter("c")),
            "scale": on("gradients scaled by 2.0", "gradients scaled by 1024.0"),
            "warm-up scale": on("gradients scaled by 2.0", "gradients scaled by 1024.0"),
            "replicas' small scale": on("gradients scaled by 2.0", "gradients scaled by 1024.0"),
        }
        for name, who in wanted.items():
            error = report[name]["error"]
            assert "InputError" in error, (name, rank, error)
            assert f"what differs first is {who}." in error, (name, rank, error)
        for name, other in (("replicas", parameter("c")), ("replicas' sizes", parameter("b", 8, 8))):
            module = " in module '(root)'"
            who = on(parameter("b") + module, other + module)
            assert report[name]["error"] == f"ConfigurationError: ranks have different parameters: {who}"
        own, theirs = ("1024", "2") if rank == odd else ("2", "1024")
        assert f"scaled by {own}, another one the same, scaled by {theirs}. " in report["replicas' scale"]["error"]
        assert not any(case["waited"] for case in report.values()), report
