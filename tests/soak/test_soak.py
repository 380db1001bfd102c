"""Seconds of the soak, so that make soak works when it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_seconds_of_soak() -> None:
    program = Path(__file__).with_name("soak.py")
    command = [sys.executable, str(program), "--minutes", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "server killed" in done.stdout
