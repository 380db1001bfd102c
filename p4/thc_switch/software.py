"""A switch in software with its agent, in one process: the P4 model, or bmv2's simple_switch as a child process."""

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from byteps_thc._base.errors import ConfigurationError, TransportError
from thc_switch import limits
from thc_switch.agent import SwitchAgent
from thc_switch.controls import plan
from thc_switch.description import Deployment
from thc_switch.programs import INCLUDE_FOLDER, program_path
from thc_switch.serve import serve
from thc_switch.targets import require_model
from thc_switch.targets.bmv2 import Bmv2Control

if TYPE_CHECKING:
    from thc_p4_model.port_loop import PortLoop
    from thc_p4_model.ports import Port

#: `thc switch run` prints this line once it forwards packets.
READY = "switch ready"
#: Programs that bmv2 needs on PATH.
BMV2_PROGRAMS = ("simple_switch", "simple_switch_CLI", "p4c-bm2-ss")
BMV2_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0


def model_loop(deployment: Deployment, ports: Mapping[int, "Port"]) -> "PortLoop":
    """Return the program of a deployment in the P4 model, with the deployment's tables and its agent at the CPU port.

    ports: front-panel ports by number. Raises ConfigurationError if the model is not installed.
    """
    require_model()
    # Imported here, because bmv2 does not need the model.
    from thc_p4_model.port_loop import PortLoop
    from thc_p4_model.ports import FunctionPort
    from thc_switch.targets.model import new_switch_with_control

    switch, control = new_switch_with_control(deployment.switch)
    control.install(plan(deployment))
    agent = SwitchAgent(deployment, control)
    cpu = FunctionPort(lambda frame: agent.handle(frame, time.monotonic()))
    return PortLoop(switch, {**ports, deployment.switch.cpu_port: cpu})


def run_model(deployment: Deployment, interfaces: Mapping[int, str], stop: threading.Event) -> None:
    """Run the program in the P4 model between network interfaces, by port number, until `stop` is set.

    Prints READY once it forwards packets. Raises ConfigurationError for an interface that cannot be used.
    """
    require_model()
    from thc_p4_model.ports import InterfacePort, disable_receive_merging

    ports: dict[int, Port] = {}
    with ExitStack() as stack:
        for number, interface in interfaces.items():
            try:
                disable_receive_merging(interface)
                ports[number] = InterfacePort(interface)
            except OSError as error:
                raise ConfigurationError(f"port {number}: interface {interface!r}: {error.strerror}") from error
            stack.callback(ports[number].close)
        loop = model_loop(deployment, ports)
        print(READY, flush=True)
        loop.run(stop)


def run_bmv2(deployment: Deployment, interfaces: Mapping[int, str], cpu_interface: str, stop: threading.Event) -> None:
    """Compile the v1model program with p4c, and run it in simple_switch until `stop` is set.

    interfaces: by port number. cpu_interface: the switch's end of the CPU port's cable; the agent's end is
    cpu_interface of the deployment's switch. Raises TransportError if the program does not compile or start.
    """
    agent_interface = deployment.switch.cpu_interface
    if agent_interface is None:
        raise ConfigurationError(
            "bmv2's agent needs cpu_interface in [switch], the agent's end of the CPU port's cable"
        )
    missing = [name for name in BMV2_PROGRAMS if shutil.which(name) is None]
    if missing:
        raise ConfigurationError(f"{', '.join(missing)} not on PATH: install bmv2 and p4c, or use --target model")
    with tempfile.TemporaryDirectory(prefix="thc-bmv2-") as folder:
        compiled = compile_for_bmv2(program_path("v1model"), Path(folder))
        all_interfaces = {**interfaces, deployment.switch.cpu_port: cpu_interface}
        ports = [option for number, name in all_interfaces.items() for option in ("-i", f"{number}@{name}")]
        # A file socket, which network namespaces do not isolate: its name must be unique.
        command = ["simple_switch", "--log-level", "warn", "--notifications-addr", f"ipc://{compiled}.ipc", *ports]
        ends_with_this = ["setpriv", "--pdeathsig", "KILL"]
        simple_switch = subprocess.Popen([*ends_with_this, *command, str(compiled)], stdout=subprocess.DEVNULL)
        try:
            control = Bmv2Control()
            _install_when_ready(control, deployment, simple_switch)
            agent = SwitchAgent(deployment, control)
            print(READY, flush=True)
            serve(agent, agent_interface, stop)
        finally:
            simple_switch.terminate()
            simple_switch.wait(_STOP_TIMEOUT_S)


def compile_for_bmv2(source: Path, folder: Path) -> Path:
    """Compile with p4c-bm2-ss into `folder`; return the JSON's path. TransportError if that fails."""
    compiled = folder / f"{source.stem}-{os.getpid()}.json"
    command = ["p4c-bm2-ss", "-I", str(INCLUDE_FOLDER), "-o", str(compiled), str(source)]
    if subprocess.run(command, check=False).returncode != 0:
        raise TransportError(f"{' '.join(command)} failed; see its messages above")
    return compiled


def _install_when_ready(control: Bmv2Control, deployment: Deployment, simple_switch: subprocess.Popen[bytes]) -> None:
    """Install the deployment, once simple_switch's Thrift server listens, a moment after its start."""
    # All packets of the workers may wait for recirculation. The default queue has 64 places and drops the others.
    packets = 2 * deployment.switch.buffer_bytes // (limits.CODES_PER_PACKET * limits.CODE_BITS // 8)
    deadline = time.monotonic() + BMV2_START_TIMEOUT_S
    while True:
        try:
            control.run([f"set_queue_depth {packets}"])
            break
        except TransportError:
            if simple_switch.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    control.install(plan(deployment))
