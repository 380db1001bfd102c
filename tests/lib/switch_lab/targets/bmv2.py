"""The v1model program in a real simple_switch, compiled by p4c-bm2-ss, behind veth pairs."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from free_ports import free_tcp_port

from byteps_thc._base.errors import TransportError
from switch_lab.targets.model import V1MODEL_PROGRAM
from switch_lab.targets.wired import Cables, WiredTarget, why_no_cables
from thc_switch.programs import INCLUDE_FOLDER
from thc_switch.targets.bmv2 import Bmv2Control

PROGRAMS = ("p4c-bm2-ss", "simple_switch", "simple_switch_CLI")
FRONT_PORTS = (1, 2, 3, 4)
CPU_PORT = 64
#: simple_switch recirculates without a port; the number only has to be free.
RECIRCULATION_PORT = 68
START_TIMEOUT_S = 20.0
#: simple_switch's default of 64 packets per egress queue is less than the packets that recirculate in tests.
QUEUE_PACKETS = 4096


def why_missing() -> str | None:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"{', '.join(missing)} not on PATH" if missing else why_no_cables()


class Bmv2Target(WiredTarget):
    """Starts simple_switch; a Debug build, which checks register bounds, is the better test."""

    def __init__(self) -> None:
        super().__init__("bmv2", "v1model", FRONT_PORTS, CPU_PORT, (RECIRCULATION_PORT,))
        self._folder = tempfile.TemporaryDirectory(prefix="thc_bmv2_")
        self._cables = Cables(f"b{os.getpid()}p", (*FRONT_PORTS, CPU_PORT))
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def control(self) -> Bmv2Control:
        return self._control

    def close(self) -> None:
        super().close()
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
        self._cables.remove()
        self._folder.cleanup()

    def _start(self) -> None:
        program = Path(self._folder.name) / "thc.json"
        subprocess.run(
            ["p4c-bm2-ss", "--std", "p4-16", "-I", str(INCLUDE_FOLDER), "-o", str(program), str(V1MODEL_PROGRAM)],
            check=True,
            timeout=300,
        )
        thrift_port = free_tcp_port()
        command = [
            "simple_switch",
            "--thrift-port",
            str(thrift_port),
            "--notifications-addr",  # the default is one address for all switches of a machine
            f"ipc://{self._folder.name}/notifications",
            "--log-level",
            "error",
            *[f"-i{port}@{self._cables.switch_end(port)}" for port in self._cables.ports],
            str(program),
        ]
        self._process = subprocess.Popen(command, cwd=self._folder.name, stdout=subprocess.DEVNULL)
        self._control = Bmv2Control(f"127.0.0.1:{thrift_port}")
        self._wait_until_ready()
        self._control.run([f"set_queue_depth {QUEUE_PACKETS}"])
        self.connect({port: self._cables.host_end(port) for port in self._cables.ports})

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self._control.run(["show_ports"])
                return
            except TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
