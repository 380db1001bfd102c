"""The child process of SoftwareSwitch: `python -m byteps_thc.tools.demo.switch_process SETTINGS.json`."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from byteps_thc.errors import ThcError, TransportError
from byteps_thc.tools.demo.software_switch import CPU_PORT, READY, STOP_TIMEOUT_S
from thc_p4_model import compile_program
from thc_p4_model.architectures import new_switch
from thc_p4_model.port_loop import PortLoop
from thc_p4_model.ports import FunctionPort, InterfacePort, Port
from thc_switch.agent import SwitchAgent
from thc_switch.description import Deployment
from thc_switch.planner import plan
from thc_switch.programs import INCLUDE_FOLDER, program_path
from thc_switch.serve import serve, stopped_by_signals
from thc_switch.targets.bmv2 import Bmv2Control
from thc_switch.targets.model import ModelControl

BMV2_START_TIMEOUT_S = 30.0
_PR_SET_PDEATHSIG = 1


def run_model(settings: dict[str, Any], deployment: Deployment) -> None:
    """Run the program in the P4 model until a signal comes."""
    # Only here: bmv2 needs neither the model nor lark.

    switch = new_switch(compile_program(program_path(settings["program"]), [INCLUDE_FOLDER]))
    control = ModelControl(switch)
    control.install(plan(deployment))
    agent = SwitchAgent(deployment, control)
    with ExitStack() as stack:
        ports: dict[int, Port] = {
            int(number): InterfacePort(interface) for number, interface in settings["interfaces"].items()
        }
        for port in ports.values():
            stack.callback(port.close)
        ports[CPU_PORT] = FunctionPort(lambda frame: agent.handle(frame, time.monotonic()))
        stop = stack.enter_context(stopped_by_signals())
        print(READY, flush=True)
        PortLoop(switch, ports).run(stop)


def run_bmv2(settings: dict[str, Any], deployment: Deployment, folder: Path) -> None:
    """Compile the program with p4c, run it in simple_switch until a signal comes."""
    compiled = compile_for_bmv2(program_path(settings["program"]), folder)
    interfaces = settings["interfaces"] | {str(CPU_PORT): settings["cpu_interface"]}
    ports = [option for number, interface in interfaces.items() for option in ("-i", f"{number}@{interface}")]
    notifications = f"ipc://{compiled}.ipc"  # a file, which the namespace does not hide from other switches
    simple_switch = subprocess.Popen(
        [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "simple_switch",
            "--log-level",
            "warn",
            "--notifications-addr",
            notifications,
            *ports,
            str(compiled),
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        control = Bmv2Control()
        _install_when_ready(control, deployment, simple_switch)
        agent = SwitchAgent(deployment, control)
        with stopped_by_signals() as stop:
            print(READY, flush=True)
            serve(agent, settings["agent_interface"], stop)
    finally:
        simple_switch.terminate()
        simple_switch.wait(STOP_TIMEOUT_S)


def compile_for_bmv2(source: Path, folder: Path) -> Path:
    """Compile with p4c-bm2-ss into `folder`; returns the JSON's path. TransportError when that fails."""
    compiled = folder / f"{source.stem}-{os.getpid()}.json"
    command = ["p4c-bm2-ss", "-I", str(INCLUDE_FOLDER), "-o", str(compiled), str(source)]
    if subprocess.run(command, check=False).returncode != 0:
        raise TransportError(f"{' '.join(command)} failed; see its messages above")
    return compiled


def _install_when_ready(control: Bmv2Control, deployment: Deployment, simple_switch: subprocess.Popen[bytes]) -> None:
    """Its Thrift server listens a moment after the start."""
    deadline = time.monotonic() + BMV2_START_TIMEOUT_S
    while True:
        try:
            control.run(["show_ports"])
            break
        except TransportError:
            if simple_switch.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    control.install(plan(deployment))


def main(path: Path) -> None:
    """path: settings of SoftwareSwitch."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # who started it may be killed
    settings = json.loads(path.read_text(encoding="utf-8"))
    deployment = Deployment(**settings["deployment"])
    if settings["target"] == "model":
        run_model(settings, deployment)
    else:
        run_bmv2(settings, deployment, path.parent)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except ThcError as error:
        raise SystemExit(f"switch: {error}") from error
