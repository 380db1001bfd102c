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
from e2e.programs import one_program_or_slow
from e2e.workers import EAL, JOB, Work

from byteps_thc.tools.demo.namespaces import Namespaces, command_inside
from byteps_thc.tools.demo.site import Site
from byteps_thc.tools.launch import ParameterServer
from byteps_thc.transport.session import has_dpdk
from byteps_thc.wire.layout import UDP_PORT

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(300),
]
needs_dpdk = pytest.mark.skipif(not has_dpdk(), reason="this build has no DPDK")
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
def digests_of_thc_ps(lanes: int) -> set[str]:
    """The same training through thc-ps and kernel UDP, on loopback."""
    with tempfile.TemporaryDirectory() as folder, ParameterServer() as thc_ps:
        network = {"THC_SERVERS": thc_ps.address, "THC_JOB": str(JOB), "THC_LANES": str(lanes)}
        with BytepsLab(Path(folder), workers=WORKERS) as lab:
            lab.start(PROGRAM, str(STEPS), environment=network)
            return digests(lab)


def environment_of(site: Site, worker: int, backend: str) -> dict[str, str]:
    """What a worker is told about the switch. With DPDK it has one lane, else two, which is the default."""
    shared = {"THC_SERVERS": site.server, "THC_JOB": str(JOB), "THC_LOCAL": site.worker_local(worker)}
    if backend == "udp":
        return shared
    device = f"--vdev=net_af_packet0,iface={site.worker_interface}"
    eal = [*EAL, f"--file-prefix={site.workers[worker]}", device]
    return shared | {"THC_BACKEND": "dpdk", "THC_EAL_ARGS": " ".join(eal)}


def train_at(site: Site, control: ControlNetwork, folder: Path, backend: str) -> set[str]:
    """What the workers print after training with what is at the other end of their cables."""
    with BytepsLab(folder, workers=WORKERS, hub=control.hub, homes=control.homes) as lab:
        for worker in range(WORKERS):
            lab.start_worker(worker, PROGRAM, str(STEPS), environment=environment_of(site, worker, backend))
        return digests(lab)


@pytest.mark.parametrize(
    ("backend", "lanes"),
    [pytest.param("dpdk", 1, marks=needs_dpdk), pytest.param("udp", 2, marks=pytest.mark.slow)],
)
@one_program_or_slow
def test_parameters_are_those_of_thc_ps(
    tmp_path: Path,
    namespaces: Namespaces,
    make_site: Callable[..., Any],
    start_switch: Callable[..., Any],
    backend: str,
    lanes: int,
) -> None:
    site = make_site(Work((backend,) * WORKERS))
    start_switch(site, CONFIG, lanes)
    through_switch = train_at(site, ControlNetwork(namespaces, site), tmp_path, backend)
    assert through_switch == digests_of_thc_ps(lanes)
    assert len(through_switch) == 1


@needs_dpdk
@pytest.mark.slow
def test_thc_ps_over_dpdk(tmp_path: Path, namespaces: Namespaces, make_site: Callable[..., Any]) -> None:
    site = make_site(Work(("dpdk",) * WORKERS))
    devices = [f"--vdev=net_af_packet{w},iface={site.switch_interface(w)}" for w in range(WORKERS)]
    eal = [*EAL, f"--file-prefix={site.switch}", *devices]
    options = ["--dpdk", "--eal-args", " ".join(eal)]
    with ParameterServer(options, prefix=command_inside(site.switch), ip=site.switch_ip, port=UDP_PORT):
        through_dpdk = train_at(site, ControlNetwork(namespaces, site), tmp_path, "dpdk")
    assert through_dpdk == digests_of_thc_ps(lanes=1)
