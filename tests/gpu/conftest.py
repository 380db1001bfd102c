"""The kernels in processes of their own: Triton reads TRITON_INTERPRET when it is imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: Of a program: they take 5 to 20 s on an idle machine.
DEADLINE_S = 500


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., str]:
    """Run Python with arguments, and environment variables, and return what it prints; fails unless it ends with 0."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: pip install 'byteps_thc[gpu]'")

    def run(*arguments: str, **environment: str) -> str:
        folders = os.pathsep.join([str(HERE), str(HERE.parent / "lib")])
        libraries = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": folders}
        variables = os.environ | libraries | environment
        # Not the repository: its byteps_thc folder has no _core.
        result = subprocess.run(
            [sys.executable, *arguments],
            env=variables,
            cwd=tmp_path,
            text=True,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run


@pytest.fixture
def interpret(run_python: Callable[..., str]) -> Callable[..., str]:
    """Run a program of this folder in Triton's interpreter, on CPU tensors."""

    def run(program: str, *arguments: str) -> str:
        return run_python(str(HERE / program), *arguments, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")

    return run
