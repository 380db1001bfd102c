"""Runs `thc doctor` in environments of a given state, made for real."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEADLINE_S = 110.0


def run_doctor(*arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Run `thc doctor --json` in a process of its own; return its findings by check."""
    result = subprocess.run(
        [sys.executable, "-P", "-c", "from byteps_thc._cli.cli import app; app()", "doctor", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=os.environ | (environment or {}),
    )
    assert result.returncode in (0, 1), result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    answer = json.loads(result.stdout)
    assert answer["ok"] == (result.returncode == 0) == (not any(finding["fails"] for finding in answer["findings"]))
    return {finding["check"]: finding for finding in answer["findings"]}


def without_modules(folder: Path, *names: str) -> dict[str, str]:
    """Environment variables of a Python in which these modules are not installed."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {names!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
    )
    return {"PYTHONPATH": str(folder)}
