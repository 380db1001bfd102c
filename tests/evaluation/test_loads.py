"""Programs that no test runs still import what there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "evaluation/benchmarks"
_IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


@pytest.mark.slow
def test_every_benchmark_imports_what_it_uses() -> None:
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
    assert "bench_ddp_rank" in names
    run = subprocess.run(
        [sys.executable, "-c", _IMPORT, *names],
        cwd=BENCHMARKS,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
