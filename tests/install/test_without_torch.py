"""byteps_thc without PyTorch: averaging says that it needs it, the rest works."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_TORCH = "import sys\nsys.modules['torch'] = None  # as if it were not installed\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", WITHOUT_TORCH + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_everything_else_is_there() -> None:
    imports = "from byteps_thc import Compressor, Session, ThcConfig\n"
    result = run(imports + "print(Compressor(ThcConfig(), workers=2, worker=0).sizes(5))")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "(1, 64)\n"


@pytest.mark.parametrize(
    "code",
    [
        "from byteps_thc import GradientAverager",
        "from byteps_thc import ThcReducer",
        "from byteps_thc.ddp import compress",
        "from byteps_thc.fsdp import compress_reduce_scatter",
        "from byteps_thc.checkpoint import load",
        "import byteps_thc.torch",
    ],
)
def test_what_needs_torch_says_what_to_install(code: str) -> None:
    result = run(code)
    assert result.returncode == 1
    assert "pip install 'torch>=2.9'" in result.stderr.strip().splitlines()[-1]


def test_thc_compare_says_it_in_one_line() -> None:
    result = run("from byteps_thc._cli.cli import app\napp(['compare'], prog_name='thc')")
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("thc: ")
    assert "pip install 'torch>=2.9'" in line
