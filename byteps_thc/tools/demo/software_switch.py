"""A P4 program as a switch in software: a child process in a network namespace, with its agent."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal

from byteps_thc.config import ThcConfig
from byteps_thc.errors import ConfigurationError, TransportError
from byteps_thc.tools.demo.namespaces import command_inside
from byteps_thc.tools.demo.site import Site
from byteps_thc.tools.launch import wait_for_line
from thc_switch.description import (
    Deployment,
    JobDescription,
    RecirculationPort,
    SwitchDescription,
    WorkerDescription,
)
from thc_switch.software import BMV2_PROGRAMS, READY
from thc_switch.targets import require_model

#: Compiling the P4 program in the model takes seconds.
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
CPU_PORT = 64
RECIRCULATION_PORT = 68
SLOTS = 64

Program = Literal["v1model", "tna"]
Target = Literal["model", "bmv2"]


@dataclass(frozen=True)
class SwitchChoice:
    """Which P4 program, and what runs it."""

    program: Program
    target: Target

    @property
    def description(self) -> str:
        """In a sentence."""
        runner = "bmv2's simple_switch" if self.target == "bmv2" else "the P4 model"
        return f"{runner} with p4/programs/{self.program}"


def choose_switches(program: Program, target: Target | Literal["auto"]) -> list[SwitchChoice]:
    """What to run, best first; "auto" is bmv2 where it is installed, then the P4 model. ConfigurationError for none."""
    missing = [name for name in BMV2_PROGRAMS if shutil.which(name) is None]
    if target == "bmv2":
        if program != "v1model":
            raise ConfigurationError("bmv2 runs --program v1model; the P4 model runs both")
        if missing:
            raise ConfigurationError(f"{', '.join(missing)} not on PATH: install bmv2 and p4c, or use --target model")
        return [SwitchChoice(program, "bmv2")]
    bmv2 = target == "auto" and program == "v1model" and not missing
    try:
        require_model()
    except ConfigurationError:
        if not bmv2:
            raise
        return [SwitchChoice(program, "bmv2")]
    model = SwitchChoice(program, "model")
    return [SwitchChoice(program, "bmv2"), model] if bmv2 else [model]


def describe(site: Site, program: Program, job: int, config: ThcConfig, lanes: int = 1) -> Deployment:
    """Description of a switch with one job of all workers of the site, or one for each lane."""
    workers = tuple(
        WorkerDescription(
            ip=IPv4Address(site.worker_ip(worker)),
            mac=site.worker_mac(worker),
            udp_port=site.worker_udp_port(worker),
            port=site.switch_port(worker),
        )
        for worker in range(len(site.workers))
    )
    switch = SwitchDescription(
        architecture="v1model" if program == "v1model" else "tofino1",
        ip=IPv4Address(site.switch_ip),
        mac=site.switch_mac,
        cpu_port=CPU_PORT,
        cpu_interface=site.agent_interface,
        recirculation=(RecirculationPort(port=RECIRCULATION_PORT),),
    )
    described = JobDescription(job_id=job, workers=workers, slots=SLOTS, lanes=lanes, thc=config)
    return Deployment(switch=switch, jobs=(described,))


class SoftwareSwitch:
    """The child process, which runs from the start until stop().

    folder: for its description. uplinks: interfaces by port number, besides those to workers.
    """

    def __init__(
        self,
        site: Site,
        choice: SwitchChoice,
        deployment: Deployment,
        folder: Path,
        uplinks: Mapping[int, str] | None = None,
    ) -> None:
        path = folder / f"{site.switch}.json"
        path.write_text(deployment.model_dump_json(), encoding="utf-8")
        interfaces = {site.switch_port(worker): site.switch_interface(worker) for worker in range(len(site.workers))}
        interfaces |= uplinks or {}
        ports = [option for number, name in interfaces.items() for option in ("--port", f"{number}={name}")]
        cpu = ["--cpu-interface", site.cpu_interface] if choice.target == "bmv2" else []
        # simple_switch looks for the state of its interfaces in /sys, which only `ip netns exec` mounts anew.
        bmv2 = choice.target == "bmv2"
        command = ["ip", "netns", "exec", site.switch] if bmv2 else command_inside(site.switch)
        command += ["setpriv", "--pdeathsig", "TERM"]  # who started it may be killed
        command += [sys.executable, "-P", "-m", "byteps_thc", "switch", "run", str(path), "--target", choice.target]
        command += [*ports, *cpu]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)

    def wait_until_ready(self) -> None:
        """Return when packets may come; TransportError when the process ends before, or takes too long."""
        if wait_for_line(self._process, READY, "the switch", START_TIMEOUT_S) is None:
            raise TransportError("the switch ended before it was ready; see its messages above")

    def stop(self) -> None:
        """End the process. May be called again."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
