"""byteps_thc without the extra `cli`, without thc_lab, and without PyTorch."""

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
import byteps_thc.checkpoint, byteps_thc.ddp, byteps_thc.fsdp, byteps_thc._own_loop.synchronizer, byteps_thc.torch
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


WITHOUT_TORCH = "import sys\nsys.modules['torch'] = None  # as if it were not installed\n"


def test_everything_else_is_there() -> None:
    imports = "from byteps_thc import CompressionStats, Compressor, Session, ServerCodes\n"
    result = run(WITHOUT_TORCH + imports + "print(Compressor(ServerCodes(), workers=2, worker=0).sizes(5))")
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
    result = run(WITHOUT_TORCH + code)
    assert result.returncode == 1
    assert "pip install 'torch>=2.9'" in result.stderr.strip().splitlines()[-1]


def test_thc_compare_says_it_in_one_line() -> None:
    result = run(WITHOUT_TORCH + "from byteps_thc._cli.cli import app\napp(['compare'], prog_name='thc')")
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("thc: ")
    assert "pip install 'torch>=2.9'" in line
