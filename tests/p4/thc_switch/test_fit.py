"""The TNA program fits both chips, where a P4 compiler with Tofino back end is installed."""

import json
from pathlib import Path

import pytest

from thc_lab.tofino_compiler import (
    CHIPS,
    COMPILE_S,
    COMPILER,
    Chip,
    Resources,
    compile_program,
    documented,
    resources_of,
    stages_of,
)

README = Path(__file__).parents[3] / "p4/README.md"


@pytest.mark.slow
@pytest.mark.timeout(COMPILE_S + 60)
@pytest.mark.skipif(COMPILER is None, reason="neither bf-p4c nor p4c-barefoot is on PATH")
@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_the_program_fits(chip: Chip, tmp_path: Path) -> None:
    """The compiler fails if a table finds no place; its assembly has the stage of each table."""
    assembly = compile_program(chip, tmp_path).read_text()
    assert stages_of(assembly) <= chip.stages


def test_resources_are_counted() -> None:
    """On excerpts of the compiler's schema of resources.json (2.4), as it is not installed everywhere."""
    usages = [{"used_by": "table", "used_for": "stateful_ram"}]
    stages = [
        {
            "stage_number": number,
            "rams": {
                "nRows": 8,
                "nColumns": 10,
                "srams": [{"row": 0, "column": i, "usages": usages} for i in range(5)],
            },
            "meter_alus": {"nAlus": 4, "meters": [{"row": 2 * i + 1, "usages": usages} for i in range(number)]},
        }
        for number in range(4)
    ]
    log = json.dumps({"schema_version": "2.4.2", "resources": {"mau": {"nStages": 12, "mau_stages": stages}}})
    assembly = "stage 0 ingress:\n  dependency: match\nstage 3 egress:\n"
    found = resources_of(assembly, log)
    assert found == Resources(stages=4, stateful_alus=6, sram_blocks=20)
    assert found.sram_mbit == pytest.approx(2.62, abs=0.01)


def test_what_was_counted_last_is_found() -> None:
    sram = "| SRAM blocks of 128 Kb | 472, 61.9 Mb | 39.9 Mb |"
    text = f"| | here | of |\n| stages | 11 | 12 |\n| stateful ALUs | 36 | 48 |\n{sram}\n"
    assert documented(text) == (Resources(11, 36, 472), sram)
    with pytest.raises(ValueError, match="has no table"):
        documented(text.replace("stateful", "other"))
    found, _ = documented(README.read_text())
    assert found.stages <= CHIPS[0].stages
