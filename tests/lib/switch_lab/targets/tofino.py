"""The TNA program in Intel's tofino-model, behind the veth pairs of the SDE's veth_setup.sh.

The SDE is not public, so this has never been run: it is what would run, written from the SDE's documented conventions.
tofino-model and the switch daemon must be running with the program loaded (p4/README.md, "On a Tofino").
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from switch_lab.jobs import Job
from switch_lab.targets.wired import WiredTarget, why_no_cables
from thc_switch.targets import Target as ControlTarget
from thc_switch.targets import connect
from thc_switch.targets.base import SwitchControl

PROGRAMS = ("tofino-model", "bfshell")
FRONT_PORTS = (0, 1, 2, 3)
CPU_PORT, RECIRCULATION_PORT = 64, 68


def host_end(port: int) -> str:
    """veth_setup.sh: port n is wired to veth 2n, whose other end is 2n + 1; the CPU's port to 250."""
    return "veth251" if port == CPU_PORT else f"veth{2 * port + 1}"


def why_missing() -> str | None:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} not on PATH (Intel P4 Studio)"
    if not Path(f"/sys/class/net/{host_end(CPU_PORT)}").exists():
        return f"no interface {host_end(CPU_PORT)}: run the SDE's veth_setup.sh, tofino-model and the switch daemon"
    return why_no_cables()


class TofinoTarget(WiredTarget):
    """A running tofino-model with one pipe in use."""

    def __init__(self) -> None:
        super().__init__("tofino", "tofino1", FRONT_PORTS, CPU_PORT, (RECIRCULATION_PORT,))
        self._control: SwitchControl | None = None
        self.connect({port: host_end(port) for port in (*FRONT_PORTS, CPU_PORT)})

    @property
    def control(self) -> SwitchControl:
        assert self._control is not None, "nothing was installed"
        return self._control

    def install(self, jobs: Sequence[Job]) -> None:
        if self._control is None:
            self._control = connect(ControlTarget.GRPC, self.describe(jobs).switch)
        super().install(jobs)
