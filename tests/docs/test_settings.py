"""Settings of the product, and their page (evaluation/settings.py)."""

import subprocess
import sys
from pathlib import Path

from byteps_thc import CompressionPolicy, NetworkConfig
from byteps_thc._base.environment import VARIABLES
from byteps_thc.torch.settings import ThcCompression

ROOT = Path(__file__).parents[2]


def test_settings_are_listed() -> None:
    command = [sys.executable, "-P", str(ROOT / "evaluation/settings.py")]
    *listed, count = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    settings = [line.partition(": ")[0] for line in listed]
    assert count == f"{len(settings)} settings"
    expected = {
        "ServerCodes.bits",
        "NetworkSettings.quorum",
        "policy=",
        "thc doctor --json",
        "thc-ps --port",
        "thc-ps --faults drop=",
        "THC_CONFIG",
        "THC_PS",
    }
    assert {*expected, "JobDescription.quorum"} <= {*settings}


def test_the_page_of_settings_is_generated() -> None:
    command = [sys.executable, str(ROOT / "scripts/generate_settings.py"), "--check"]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_the_page_names_all_variables() -> None:
    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    assert len(VARIABLES) == 13
    assert all(f"| `THC_{name}` |" in text for name in VARIABLES)
    for anchor in (
        "RankCodes",
        "ServerCodes",
        "CompressionPolicy",
        "NetworkConfig",
        "Session",
        "Timeouts",
        "Environment variables",
    ):
        assert f"\n## {anchor}\n" in text


def test_defaults_of_variables_are_those_of_settings() -> None:
    """A front end that reads a variable has its default as the default of a field, too."""
    fields = ThcCompression.model_fields
    defaults = {
        "BACKEND": {fields["backend"].default, NetworkConfig.backend},
        "DEADLINE_S": {f"{CompressionPolicy.model_fields['deadline_s'].default:g}"},
        "JOB": {str(fields["job"].default), str(NetworkConfig.job)},
        "LOG_EVERY": {str(fields["log_every"].default)},
        "ROUTE": {fields["route"].default},
    }
    assert {name: {each.default} for name, each in VARIABLES.items() if each.default} == defaults
