"""The example testbed as it is, but for its name and fewer steps: BytePS, DPDK and a P4 program in one command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from byteps_lab import why_not

from byteps_thc.errors import ConfigurationError
from byteps_thc.tools.demo.namespaces import Namespaces
from byteps_thc.transport.session import has_dpdk

EXAMPLE = Path(__file__).parents[3] / "docs/examples/testbed.example.toml"
#: A switch in software takes seconds for a step, more where the machine is busy.
DEADLINE_S = 280.0

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.skipif(not has_dpdk(), reason="this build has no DPDK"),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.timeout(300),
]


def run_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`thc testbed` with these arguments."""
    path = os.pathsep.join(part for part in sys.path if part)
    variables = {"XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": path, "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-P", "-m", "byteps_thc", "testbed", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=os.environ | variables,
    )


@pytest.fixture
def description(tmp_path: Path) -> Path:
    try:
        with Namespaces() as namespaces:
            namespaces.add("probe")
    except ConfigurationError as error:
        pytest.skip(f"no network namespaces here: {error}")
    text = EXAMPLE.read_text()
    changes = {r'name = "example"': f'name = "example{os.getpid()}"', r'"--steps", "\d+"': '"--steps", "2"'}
    for pattern, new in changes.items():
        text, count = re.subn(pattern, new, text)
        assert count == 1
    path = tmp_path / "testbed.toml"
    path.write_text(text)
    return path


def test_the_example_trains_and_prints_the_demos_table(description: Path, tmp_path: Path) -> None:
    finished = run_command(tmp_path, "run", "--down", str(description))
    assert finished.returncode == 0, finished.stdout + finished.stderr
    output = finished.stdout
    assert "[worker0] THC, step 2: loss " in output
    table = [line.strip("│").split("│") for line in output.splitlines()]
    rows = {cells[0].strip(): cells[1:] for cells in table if len(cells) == 3}
    uncompressed, thc = (float(cell) for cell in rows["validation loss (nats)"])
    assert thc == pytest.approx(uncompressed, rel=0.05)
    assert [cell.strip() for cell in rows["workers bit-identical"]] == ["yes", "yes"]
    saving = re.search(r"\((\d+\.\d+)x\)", rows["KiB up, payload"][1])
    assert saving is not None
    assert float(saving[1]) > 4  # 8 but for padding of small tensors to whole packets
    assert not [path for path in Path("/run/netns").iterdir() if f"thc-example{os.getpid()}-" in path.name]
    assert not list((tmp_path / "state").rglob("*.*"))
