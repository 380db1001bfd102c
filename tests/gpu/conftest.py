"""The kernels in processes of their own: Triton reads TRITON_INTERPRET when it is imported."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from thc_lab.fork_server import start_program

HERE = Path(__file__).parent
#: A program's time, of 5 to 20 s on an idle machine.
DEADLINE_S = 500
INTERPRETER = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Environment of a program: it finds modules of this folder and of lib."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: pip install 'triton>=3.6'")
    folders = os.pathsep.join([str(HERE), str(HERE.parent / "lib")])
    return os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": folders}


@pytest.fixture
def run_python(variables: dict[str, str], tmp_path: Path) -> Callable[..., str]:
    """Run Python with arguments, and environment variables, and return its output; fails unless it ends with 0."""

    def run(*arguments: str, **environment: str) -> str:
        # Not the repository: its byteps_thc folder has no _core.
        result = subprocess.run(
            [sys.executable, *arguments],
            env=variables | environment,
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
def interpret(variables: dict[str, str], tmp_path: Path) -> Callable[..., str]:
    """Run a program of this folder in Triton's interpreter, on CPU tensors; Triton is imported once."""

    def run(program: str, *arguments: str) -> str:
        log = tmp_path / "output"
        process = start_program(
            HERE / program, *arguments, environment=variables, log=log, folder=tmp_path, before_import=INTERPRETER
        )
        try:
            status = process.wait(DEADLINE_S)
        finally:
            process.kill()
        printed = log.read_text(encoding="utf-8", errors="replace")
        assert status == 0, printed
        return printed

    return run
