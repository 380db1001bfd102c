"""The generated wire layouts equal the output of scripts/generate_wire.py."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/generate_wire.py"


def test_wire_layouts_are_up_to_date():
    run = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
