"""How many settings the product has (evaluation/settings.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: May only fall.
MOST = 234


def test_settings_become_fewer() -> None:
    command = [sys.executable, "-P", str(ROOT / "evaluation/settings.py")]
    *listed, count = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    settings = [line.partition(": ")[0] for line in listed]
    assert count == f"{len(settings)} settings"
    expected = {
        "ThcConfig.bits",
        "NetworkSettings.quorum",
        "policy=",
        "thc doctor --json",
        "thc-ps --port",
        "thc-ps --faults drop=",
        "THC_CONFIG",
        "THC_PS",
    }
    assert {*expected, "JobDescription.quorum"} <= {*settings}
    assert len(settings) <= MOST, "give the new setting in the place of one that nobody needs"


def test_the_guide_names_all_variables() -> None:
    text = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
    settings = subprocess.run(
        [sys.executable, "-P", str(ROOT / "evaluation/settings.py")], check=True, capture_output=True, text=True
    ).stdout
    variables = [line.partition(":")[0] for line in settings.splitlines() if line.startswith("THC_")]
    assert len(variables) == 13
    assert all(f"| `{variable}` |" in text for variable in variables)
