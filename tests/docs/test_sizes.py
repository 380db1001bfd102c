"""How large the product is (evaluation/lines.py). The numbers may only fall: whoever removes lines lowers a limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = {
    "product": 52_200,
    "byteps_thc": 29_920,
    "lab": 8_000,
    "tests": 60_000,
    "Protocols": 20,
    "entries of byteps_thc": 16,
}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git knows which files are sources")
def test_the_product_becomes_smaller() -> None:
    command = [sys.executable, "-P", str(ROOT / "evaluation/lines.py")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    numbers = {name: int(number) for name, _, number in (line.partition(": ") for line in printed.splitlines())}
    assert numbers["p4/thc_p4_model"] > 0
    assert min(numbers[name] for name in MOST) > 0
    above = {name: (numbers[name], most) for name, most in MOST.items() if numbers[name] > most}
    assert not above, "make something smaller in return (number, limit)"
