"""The quickstart's example of two workers without a framework does what the page says, and README is short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from markdown_snippets import python_snippets

from byteps_thc._cli.launch import ParameterServer

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/quickstart.md"
DEFAULT_ADDRESS = "127.0.0.1:48865"


def example() -> str:
    """The script of two workers."""
    (script,) = python_snippets(PAGE)["Average without a framework"]
    return script


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert len(text.split()) <= 900


def test_example_is_ten_lines() -> None:
    assert len([line for line in example().splitlines() if line]) <= 10


@pytest.mark.parametrize("place", ["elsewhere", "in the clone"])
def test_two_workers_print_the_same_average(place: str, thc_ps: ParameterServer, tmp_path: Path) -> None:
    assert DEFAULT_ADDRESS in example()
    in_clone = place == "in the clone"
    source = str(ROOT / "byteps_thc")
    check = f"import byteps_thc; assert byteps_thc.__file__.startswith({source!r}) is {in_clone}\n"
    script = example().replace(DEFAULT_ADDRESS, thc_ps.address) + check
    # The script on standard input: Python imports from the folder that it runs in, as from that of a saved script.
    workers = [
        subprocess.Popen(
            [sys.executable, "-", str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT if in_clone else tmp_path,
        )
        for rank in range(2)
    ]
    try:
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(script)
            worker.stdin.close()
            worker.stdin = None
        outputs = [worker.communicate(timeout=60)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0]
    averages = [output[: output.index("]")] for output in outputs]
    assert averages[0] == averages[1]
    assert averages[0].startswith("[")
