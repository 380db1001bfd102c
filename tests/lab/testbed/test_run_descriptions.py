"""Other chains than the example's, each described and run in namespaces: thc-ps, kernel UDP, torchrun."""

import re
from pathlib import Path

import pytest
from markdown_snippets import python_snippets
from testbed_chains import run_chain, skip_without_namespaces

from byteps_thc._native._comm import has_dpdk

pytestmark = pytest.mark.slow
DOCUMENT = Path(__file__).parents[3] / "docs/testbed.md"
TRAINING = ["python3", "-P", "-m", "thc_lab.testbed.training", "--steps", "4"]
DPDK = 'kind = "dpdk"\ndriver = "af_packet"\nhugepages = false\nmemory_mib = 128'


@pytest.fixture(autouse=True)
def namespaces() -> None:
    skip_without_namespaces()


needs_dpdk = pytest.mark.skipif(not has_dpdk(), reason="this build has no DPDK")


@pytest.mark.byteps
@pytest.mark.parametrize(
    ("aggregator", "transport"),
    [
        pytest.param("colocated", 'kind = "udp"', id="colocated-udp"),
        pytest.param("thc-ps", DPDK, id="thc-ps-dpdk", marks=needs_dpdk),
    ],
)
def test_byteps_through_thc_ps(aggregator: str, transport: str, tmp_path: Path) -> None:
    output = run_chain(tmp_path, aggregator, transport, "bpslaunch", TRAINING, results=True)
    assert "workers bit-identical" in output
    assert "THC, step 4: loss" in output


def test_ranks_of_torchrun_through_thc_ps(tmp_path: Path) -> None:
    [script] = python_snippets(DOCUMENT)["The description"]
    said = "print(f'rank {dist.get_rank()} done')"  # in one piece
    (tmp_path / "step.py").write_text(f"{script}{said}\n", encoding="utf-8")
    udp = 'kind = "udp"\nmtu_bytes = 9000'
    output = run_chain(tmp_path, "thc-ps", udp, "torchrun", ["python3", "step.py"], workers=2)
    assert set(re.findall(r"rank (\d) done", output)) == {"0", "1", "2", "3"}, output
