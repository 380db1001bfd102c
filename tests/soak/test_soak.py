"""Seconds of the soak, so that make soak works when it is asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

KINDS = [
    "loss",
    "duplication",
    "reordering",
    "worker stopped",
    "worker killed",
    "server stopped",
    "server killed",
    "out of memory",
    "full disk",  # says that it is skipped where a user may mount nothing
    "corruption",
    "clock steps",
]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_seconds_of_soak() -> None:
    program = Path(__file__).parents[2] / "lab/thc_lab/soak/soak.py"
    command = [sys.executable, "-P", str(program), "--minutes", "0.4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    missing = [kind for kind in KINDS if not any(line.startswith(kind) for line in done.stdout.splitlines())]
    assert not missing, done.stdout
