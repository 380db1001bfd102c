"""The examples as they are, but for their names and fewer steps: BytePS through DPDK and a P4 program, and racks."""

import re
from pathlib import Path

import pytest
from testbed_chains import changed, run_description, skip_without_namespaces
from testbed_plans import EXAMPLE, RACKS_EXAMPLE

from byteps_thc._native._comm import has_dpdk

pytestmark = [pytest.mark.byteps]


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(EXAMPLE, marks=pytest.mark.skipif(not has_dpdk(), reason="this build has no DPDK"), id="example"),
        pytest.param(RACKS_EXAMPLE, id="racks"),
    ],
)
def test_it_trains_and_prints_the_demos_table(example: Path, tmp_path: Path) -> None:
    skip_without_namespaces()
    output = run_description(tmp_path, changed(example, {r'"--steps", "\d+"': '"--steps", "2"'}))
    assert "[worker0] THC, step 2: loss " in output
    table = [line.strip("│").split("│") for line in output.splitlines()]
    rows = {cells[0].strip(): cells[1:] for cells in table if len(cells) == 3}
    uncompressed, thc = (float(cell) for cell in rows["validation loss, all (nats)"])
    assert thc == pytest.approx(uncompressed, rel=0.05)
    assert [cell.strip() for cell in rows["workers bit-identical"]] == ["yes", "yes"]
    saving = re.search(r"\((\d+\.\d+)x\)", rows["KiB up, payload"][1])
    assert saving is not None
    assert float(saving[1]) > 4  # 8 but for padding of small tensors to whole packets
