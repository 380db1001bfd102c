"""The whole chain as `thc testbed` runs it: BytePS's workers under bpslaunch, DPDK or kernel UDP, a P4 program.

Parameters are those of thc-ps, to the bit.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from byteps_lab import BytepsLab
from byteps_training import CONFIG
from e2e.programs import one_program_or_slow
from e2e.workers import JOB
from testbed_chains import changed, run_description, skip_without_namespaces
from testbed_plans import EXAMPLE, RACKS_EXAMPLE

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import has_dpdk
from thc_lab.demo_switch.software_switch import SwitchChoice
from thc_lab.testbed.plan_environment import config_text

pytestmark = [
    pytest.mark.byteps,
    pytest.mark.timeout(300),
]
needs_dpdk = pytest.mark.skipif(not has_dpdk(), reason="this build has no DPDK")
PROGRAM = Path(__file__).parent / "programs/byteps_worker.py"
STEPS = 3
ARCHITECTURES = {"v1model": "v1model", "tna": "tofino1"}
#: Of a description: with DPDK it is as in the example.
UDP = {
    r'kind = "dpdk".*': 'kind = "udp"',
    r"driver = .*": "",
    r"hugepages = .*": "",
    r"memory_mib = .*": "",
}
THC_PS = {
    r'(?s)kind = "switch".*?(?=\[transport\])': 'kind = "thc-ps"\nhosts = ["tor"]\n\n',
    r'name = "tor".*': 'name = "tor"\nnics = [{ ip = "10.77.0.254" }]',
}


@functools.cache
def digests_of_thc_ps(lanes: int, workers: int = 3) -> set[str]:
    """What the workers print after the same training through thc-ps and kernel UDP, on loopback."""
    with tempfile.TemporaryDirectory() as folder, ParameterServer() as thc_ps:
        network = {"THC_SERVERS": f"{thc_ps.address},lanes={lanes}", "THC_JOB": str(JOB)}
        with BytepsLab(Path(folder), workers=workers) as lab:
            lab.start(PROGRAM, str(STEPS), environment=network | {"THC_CONFIG": config_text(CONFIG)})
            finished = lab.wait(240.0)
        assert [worker.status for worker in finished] == [0] * workers, lab.outputs()
        return {digest for worker in finished for digest in digests_in(worker.output)}


def digests_in(output: str) -> list[str]:
    """Of all workers, who print one each in the end."""
    return re.findall(r"digest (\w+)", output)


def train(folder: Path, changes: Mapping[str, str], example: Path = EXAMPLE) -> list[str]:
    """What the workers of an example print, when it is changed and trains with known gradients."""
    has_settings = "[job.thc]" in example.read_text(encoding="utf-8")
    settings = [f"{name} = {json.dumps(value)}" for name, value in CONFIG.model_dump(exclude_unset=True).items()]
    training = {
        r"command = .*": f"command = {json.dumps(['python3', '-P', str(PROGRAM), str(STEPS)])}",
        r"results = true": "results = false",
        r"\[training\]": "\n".join(["" if has_settings else "[job.thc]", *settings, "[training]"]),
    }
    return digests_in(run_description(folder, changed(example, training | dict(changes))))


@pytest.mark.parametrize(
    ("backend", "lanes"),
    [pytest.param("dpdk", 1, marks=needs_dpdk), pytest.param("udp", 2, marks=pytest.mark.slow)],
)
@one_program_or_slow
def test_parameters_are_those_of_thc_ps(tmp_path: Path, choice: SwitchChoice, backend: str, lanes: int) -> None:
    skip_without_namespaces()
    switch = {
        r'runner = "model"': f'runner = "{choice.target}"',
        r'architecture = "v1model"': f'architecture = "{ARCHITECTURES[choice.program]}"',
    }
    through_switch = train(tmp_path, switch | (UDP if backend == "udp" else {}))
    assert through_switch == [*digests_of_thc_ps(lanes)] * 3


@needs_dpdk
@pytest.mark.slow
def test_thc_ps_over_dpdk(tmp_path: Path) -> None:
    skip_without_namespaces()
    assert train(tmp_path, THC_PS) == [*digests_of_thc_ps(lanes=1)] * 3


@pytest.mark.slow
def test_two_levels_of_thc_ps(tmp_path: Path) -> None:
    skip_without_namespaces()
    assert train(tmp_path, {}, RACKS_EXAMPLE) == [*digests_of_thc_ps(lanes=2, workers=4)] * 4
