"""The TNA program fits both chips, where a P4 compiler with Tofino back end is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from thc_switch.programs import program_path

COMPILER = shutil.which("bf-p4c") or shutil.which("p4c-barefoot")
COMPILE_S = 900


@dataclass(frozen=True)
class Chip:
    """One generation: how the compiler is told, and how many stages it has."""

    name: str
    arch: str
    stages: int
    defines: tuple[str, ...] = ()


CHIPS = (Chip("tofino", "tna", 12), Chip("tofino2", "t2na", 20, ("-DTHC_TOFINO2",)))


@pytest.mark.slow
@pytest.mark.timeout(COMPILE_S + 60)
@pytest.mark.skipif(COMPILER is None, reason="neither bf-p4c nor p4c-barefoot is on PATH")
@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_the_program_fits(chip: Chip, tmp_path: Path) -> None:
    """The compiler gives up when a table finds no place; what it placed says in which stage."""
    command = [str(COMPILER), "--target", chip.name, "--arch", chip.arch, *chip.defines, "-o", str(tmp_path)]
    compiled = subprocess.run(
        [*command, str(program_path("tna"))], capture_output=True, text=True, timeout=COMPILE_S, check=False
    )
    assert compiled.returncode == 0, compiled.stderr[-2000:]
    (assembly,) = tmp_path.rglob("*.bfa")
    placed = {int(stage) for stage in re.findall(r"^stage (\d+) (?:in|e)gress:", assembly.read_text(), re.MULTILINE)}
    assert max(placed) < chip.stages
