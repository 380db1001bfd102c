"""byteps_thc on a training node: without the extra `cli`, and without thc_lab."""

from __future__ import annotations

import subprocess
import sys

import pytest

TRAINING = """
import sys
for name in ("rich", "typer", "thc_lab"):
    sys.modules[name] = None  # as if it were not installed
import byteps_thc
for name in byteps_thc.__all__:
    getattr(byteps_thc, name)
import byteps_thc.checkpoint, byteps_thc.ddp, byteps_thc.fsdp, byteps_thc._synchronization, byteps_thc.torch
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_training_imports_neither() -> None:
    result = run(TRAINING)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("package", ["rich", "typer"])
def test_thc_says_what_to_install(package: str) -> None:
    result = run(f"import sys; sys.modules[{package!r}] = None; from byteps_thc.__main__ import main; main()", "--help")
    assert result.returncode == 1
    assert result.stderr == f"thc: {package} is not installed: pip install 'rich>=13' 'typer>=0.12'\n"


@pytest.mark.parametrize("command", ["demo", "demo-switch", "testbed"])
def test_a_command_of_the_lab_says_what_to_install(command: str) -> None:
    without = "import importlib.metadata as metadata; metadata.entry_points = lambda **_: ()"
    result = run(f"{without}; from byteps_thc.__main__ import main; main()", command, "--help")
    assert result.returncode == 1
    assert result.stderr == f"thc: thc {command} is in thc_lab: in a clone of byteps_thc, pip install ./lab\n"
