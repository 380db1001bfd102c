"""Tests in STF, the packet-test format of p4c, through the model's runner: the same files on both programs."""

import subprocess
import sys
from pathlib import Path

import pytest
from switch_lab.targets.model import TNA_PROGRAM, V1MODEL_PROGRAM, compiled

from thc_p4_model.architectures import new_switch
from thc_p4_model.stf import run_stf

FILES = sorted((Path(__file__).parent / "stf").glob("*.stf"))
PROGRAMS = {"v1model": V1MODEL_PROGRAM, "tna": TNA_PROGRAM}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file(path, program):
    switch = new_switch(compiled(PROGRAMS[program]))
    assert run_stf(switch, path) == sum(line.startswith("packet ") for line in path.read_text().splitlines())


def test_command_line():
    """As p4/thc_p4_model/README.md shows it."""
    command = [sys.executable, "-m", "thc_p4_model", "stf", str(V1MODEL_PROGRAM), str(FILES[0])]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 0, run.stderr
