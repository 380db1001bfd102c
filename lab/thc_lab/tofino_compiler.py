"""The P4 compiler with Tofino back end, where it is installed, and the resources of the TNA program."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thc_switch.programs import program_path

COMPILER = shutil.which("bf-p4c") or shutil.which("p4c-barefoot")
COMPILE_S = 900
SRAM_BLOCK_MBIT = 128 * 1024 / 1e6


@dataclass(frozen=True)
class Chip:
    """One generation: how the compiler is told, and how many stages it has."""

    name: str
    arch: str
    stages: int
    defines: tuple[str, ...] = ()


TOFINO = Chip("tofino", "tna", 12)
CHIPS = (TOFINO, Chip("tofino2", "t2na", 20, ("-DTHC_TOFINO2",)))


@dataclass(frozen=True)
class Resources:
    """Resources of one pipe. sram_blocks: of 128 Kb each."""

    stages: int
    stateful_alus: int
    sram_blocks: int

    @property
    def sram_mbit(self) -> float:
        """SRAM in Mb."""
        return self.sram_blocks * SRAM_BLOCK_MBIT


def compile_program(chip: Chip, folder: Path, *, limit_s: float = COMPILE_S) -> Path:
    """Compile into a folder; return the assembly. Raises RuntimeError if the program does not fit."""
    options = ["--target", chip.name, "--arch", chip.arch, *chip.defines, "-g", "-o", str(folder)]
    command = [str(COMPILER), *options, str(program_path("tna"))]
    compiled = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    if compiled.returncode != 0:
        raise RuntimeError(f"{COMPILER} ended with {compiled.returncode}: {compiled.stderr[-2000:]}")
    (assembly,) = folder.rglob("*.bfa")
    return assembly


def stages_of(assembly: str) -> int:
    """Return the number of stages that an assembly uses."""
    return 1 + max(int(stage) for stage in re.findall(r"^stage (\d+) (?:in|e)gress:", assembly, re.MULTILINE))


def resources_of(assembly: str, log: str) -> Resources:
    """Return the resources of a program, from its assembly and resources.json, which `-g` writes."""
    stages: list[dict[str, Any]] = json.loads(log)["resources"]["mau"]["mau_stages"]
    alus = sum(len(stage["meter_alus"]["meters"]) for stage in stages)
    return Resources(stages_of(assembly), alus, sum(len(stage["rams"]["srams"]) for stage in stages))


def documented(text: str) -> tuple[Resources, str]:
    """Return the resources of a Tofino 1 by p4/README.md, and its line of SRAM, whose commit has the date."""
    lines = [
        re.search(rf"^\| {what}[^|]*\| (\d+).*$", text, re.MULTILINE)
        for what in ("stages", "stateful ALUs", "SRAM blocks")
    ]
    stages, alus, blocks = lines
    if stages is None or alus is None or blocks is None:
        raise ValueError("the page has no table with lines of stages, stateful ALUs and SRAM blocks")
    return Resources(int(stages[1]), int(alus[1]), int(blocks[1])), blocks[0]
