"""The whole chain: BytePS's workers under bpslaunch, DPDK, a P4 program; parameters are those of thc-ps, to the bit."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from byteps_lab import BytepsLab, why_not
from byteps_training import CONFIG
from e2e.control_network import ControlNetwork
from e2e.workers import EAL, JOB, Work

from byteps_thc.tools.demo.namespaces import Namespaces
from byteps_thc.tools.demo.site import Site
from byteps_thc.tools.launch import ParameterServer
from byteps_thc.transport.session import has_dpdk

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.skipif(not has_dpdk(), reason="this build has no DPDK"),
    pytest.mark.timeout(300),
]
PROGRAM = Path(__file__).parent / "programs/byteps_worker.py"
WORKERS = 3
STEPS = 3


def digests(lab: BytepsLab, deadline_s: float = 240.0) -> set[str]:
    """What the workers print in the end."""
    lines = set()
    for worker in lab.wait(deadline_s):
        assert worker.status == 0, lab.outputs()
        lines |= {line for line in worker.output.splitlines() if line.startswith("digest ")}
    return lines


@functools.cache
def digests_of_thc_ps() -> set[str]:
    """The same training through thc-ps and kernel UDP, on loopback."""
    with tempfile.TemporaryDirectory() as folder, ParameterServer() as thc_ps:
        network = {"THC_SERVERS": thc_ps.address, "THC_JOB": str(JOB), "THC_LANES": "1"}
        with BytepsLab(Path(folder), workers=WORKERS) as lab:
            lab.start(PROGRAM, str(STEPS), environment=network)
            return digests(lab)


def environment_of(site: Site, worker: int) -> dict[str, str]:
    """A worker that sends through DPDK."""
    device = f"--vdev=net_af_packet0,iface={site.worker_interface}"
    return {
        "THC_SERVERS": site.server,
        "THC_JOB": str(JOB),
        "THC_BACKEND": "dpdk",
        "THC_LOCAL": site.worker_local(worker),
        "THC_EAL_ARGS": " ".join([*EAL, f"--file-prefix={site.workers[worker]}", device]),
    }


def test_parameters_are_those_of_thc_ps(
    tmp_path: Path, namespaces: Namespaces, make_site: Callable[..., Any], start_switch: Callable[..., Any]
) -> None:
    site = make_site(Work(("dpdk",) * WORKERS))
    control = ControlNetwork(namespaces, site)
    start_switch(site, CONFIG)
    with BytepsLab(tmp_path, workers=WORKERS, hub=control.hub, homes=control.homes) as lab:
        for worker in range(WORKERS):
            lab.start_worker(worker, PROGRAM, str(STEPS), environment=environment_of(site, worker))
        through_switch = digests(lab)
    assert through_switch == digests_of_thc_ps()
    assert len(through_switch) == 1
