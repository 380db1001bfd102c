"""Time to solve all lookup tables, and resources of the switch's program in a Tofino (paper, appendices A and B)."""

import os
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import generate_tables
from pages.claim import Check, Claim, Result, Table

from byteps_thc._scheme.adding.tables import CODE_BITS, LookupTable, solve_grid
from byteps_thc._scheme.adding.tables.selection import SOLVED_GRANULARITIES, SOLVED_P
from thc_lab.tofino_compiler import COMPILER, TOFINO, Resources, compile_program, documented, resources_of

ROOT = Path(__file__).resolve().parents[2]
#: The page with the last counted resources.
DOCUMENT = Path("p4/README.md")
PROGRAMS = Path("p4/programs")
LIMIT_S = 15
COMPILE_LIMIT_S = 600
CHIP = Resources(stages=12, stateful_alus=48, sram_blocks=960)
PAPER = {"stages": "12", "stateful ALUs": "35", "SRAM": "39.9 Mb"}


def timed_tables() -> tuple[float, dict[Path, str], list[LookupTable]]:
    """Seconds for all, text of the files that are committed, and the tables that are solved when they are wanted."""
    start = time.perf_counter()
    files = generate_tables.outputs()
    solved = [
        table
        for bits, granularities in SOLVED_GRANULARITIES.items()
        for table in solve_grid([bits], granularities, SOLVED_P[bits])
    ]
    return time.perf_counter() - start, files, solved


def table_checks() -> tuple[list[Check], Table]:
    elapsed_s, files, solved = timed_tables()
    counts = Counter(table.bits for table in solved)
    for path, text in files.items():
        counts[int(path.stem.removeprefix("b"))] += text.count("\n")
    stale = [path.name for path, text in files.items() if path.read_text() != text]
    busy = f"on a machine with a load of {os.getloadavg()[0]:.1f}, which was not idle if that is above 1"
    checks = [
        Check(
            f"all {counts.total()} tables",
            f"{LIMIT_S} s at most",
            f"{elapsed_s:.1f} s",
            elapsed_s <= LIMIT_S,
            "" if elapsed_s <= LIMIT_S else busy,
        ),
        Check(
            "committed files of tables",
            f"{len(files)} of {len(files)} the same as made here",
            f"{len(files) - len(stale)} of {len(files)}",
            not stale,
            f"{', '.join(stale)}: run scripts/generate_tables.py --check" if stale else "",
        ),
    ]
    cells = [["bits of a code", *map(str, CODE_BITS)], ["tables", *(str(counts[bits]) for bits in CODE_BITS)]]
    return checks, Table("Tables, each of the least error for its granularity and p", cells)


def compiled() -> Resources:
    """Compile the program for a Tofino 1."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assembly = compile_program(TOFINO, folder, limit_s=COMPILE_LIMIT_S)
        (log,) = folder.rglob("resources.json")
        return resources_of(assembly.read_text(), log.read_text())


def commit(*arguments: str) -> str:
    """Short hash and date of the last commit that `git log` finds so; in words without a repository."""
    command = ["git", "log", "-1", "--format=%h of %as", *arguments]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return found or "a commit that is not known here"


def fit(compile_it: bool) -> tuple[list[Check], Table]:
    """A check if the compiler exists; else the last counts, without a check."""
    programs = f"the programs are of commit {commit('--', str(PROGRAMS))}"
    checks = []
    if compile_it:
        found = compiled()
        source = f"compiled by {Path(str(COMPILER)).name}; {programs}"
        checks.append(fit_check(found))
    else:
        found, line = documented((ROOT / DOCUMENT).read_text())
        why = "skipped by quick" if COMPILER else "compiler not installed here"
        source = (
            f"{why}; last measured: see {DOCUMENT}, of commit {commit('-S', line, '--', str(DOCUMENT))}; {programs}"
        )
    cells = [
        ["one pipe", "this program", "chip", "paper"],
        ["stages", str(found.stages), str(CHIP.stages), PAPER["stages"]],
        ["stateful ALUs", str(found.stateful_alus), str(CHIP.stateful_alus), PAPER["stateful ALUs"]],
        ["SRAM", sram(found), sram(CHIP), PAPER["SRAM"]],
    ]
    return checks, Table(f"Resources of the switch's program in a Tofino 1 ({source})", cells)


def fit_check(found: Resources) -> Check:
    """The chip is the limit; the paper's program does less."""
    fits = found.stages <= CHIP.stages and found.stateful_alus <= CHIP.stateful_alus
    return Check(
        "program in a Tofino 1",
        f"{CHIP.stages} stages, {CHIP.stateful_alus} stateful ALUs, {sram(CHIP)} at most",
        f"{found.stages} stages, {found.stateful_alus} stateful ALUs, {sram(found)}",
        fits and found.sram_blocks <= CHIP.sram_blocks,
    )


def sram(resources: Resources) -> str:
    return f"{resources.sram_blocks} blocks, {resources.sram_mbit:.1f} Mb"


def measure(quick: bool) -> Result:
    tables, by_bits = table_checks()
    fits, resources = fit(COMPILER is not None and not quick)
    return Result([*tables, *fits], [by_bits, resources])


CLAIM = Claim(
    name="tables",
    title="Lookup tables, and resources of a switch",
    figure="App. A, B",
    paper="minutes for the tables; 39.9 Mb of SRAM, 35 ALUs, 12 stages",
    stand_in="The open-source compiler compiled and assembled the program. The P4 model runs it, never a Tofino. The "
    "program needs more than the paper's: it keeps the order of partitions and racks, and its memory for sums has "
    "spare blocks (p4/README.md).",
    minutes=2,
    measure=measure,
)
