"""CI's table of skipped tests, and the tests that its time limit leaves out (tests/lib/skip_table.py)."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

TESTS = """
import pytest
def test_runs(): pass
@pytest.mark.skip("no GPU")
@pytest.mark.parametrize("number", range(3))
def test_skipped(number): pass
"""


def summary(folder: Path, *arguments: str) -> list[list[str]]:
    """Words of the lines that pytest prints about tests of these kinds."""
    (folder / "test_kinds.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "skip_table", "-p", "no:cacheprovider", "-q", *arguments]
    environment = {"CI": "true", "PYTHONPATH": str(Path(__file__).parent / "lib")}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    return [line.split() for line in result.stdout.splitlines()]


def test_reasons_are_counted(tmp_path: Path) -> None:
    lines = summary(tmp_path, "--end-at", str(int(time.time()) + 1000))
    assert ["3", "no", "GPU"] in lines
    assert lines[-1][:2] == ["1", "passed,"]


def test_files_that_the_time_limit_leaves_out_are_listed(tmp_path: Path) -> None:
    lines = summary(tmp_path, "--end-at", str(int(time.time())))
    assert ["4", "not", "run:", "the", "time", "was", "up", "(--end-at)"] in lines
    assert ["4", "test_kinds.py"] in lines
