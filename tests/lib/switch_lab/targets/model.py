"""The P4 programs in the P4 model."""

from functools import cache
from pathlib import Path

from switch_lab.targets.switch import SwitchTarget
from switch_lab.targets.target import PortFrame
from thc_p4_model import compile_program
from thc_p4_model.architectures import TnaSwitch, V1ModelSwitch, new_switch
from thc_p4_model.interfaces import Program
from thc_switch.programs import INCLUDE_FOLDER, program_path
from thc_switch.targets.model import ModelControl

V1MODEL_PROGRAM = program_path("v1model")
TNA_PROGRAM = program_path("tna")
PORTS_PER_PIPE = 128
CPU_PORT = 64
#: A port of every pipe; simple_switch recirculates without a port, and the number only has to be free.
RECIRCULATION_PORT = {"v1model": 68, "tofino1": 68, "tofino2": 6}


@cache
def compiled(path: Path, defines: tuple[str, ...] = ()) -> Program:
    """Each program is compiled once."""
    return compile_program(path, include_dirs=[INCLUDE_FOLDER], defines=dict.fromkeys(defines, "1"))


class ModelTarget(SwitchTarget):
    """A switch of the P4 model in this process."""

    def __init__(self, name: str, architecture: str, switch: V1ModelSwitch | TnaSwitch, pipes: int = 1) -> None:
        recirculation = tuple(PORTS_PER_PIPE * pipe + RECIRCULATION_PORT[architecture] for pipe in range(pipes))
        super().__init__(name, architecture, _front_ports(pipes), CPU_PORT, recirculation)
        self.model, self.pipes = switch, pipes
        self._control = ModelControl(switch, pipes)

    @property
    def control(self) -> ModelControl:
        return self._control

    def run_frame(self, port: int, frame: bytes) -> list[PortFrame]:
        return self.model.process(port, frame)


def v1model() -> ModelTarget:
    return ModelTarget("v1model", "v1model", new_switch(compiled(V1MODEL_PROGRAM)))


def tna(pipes: int) -> ModelTarget:
    return ModelTarget(f"tna-{pipes}", "tofino1", new_switch(compiled(TNA_PROGRAM), pipes=pipes), pipes)


def t2na(pipes: int) -> ModelTarget:
    switch = new_switch(compiled(TNA_PROGRAM, ("THC_TOFINO2",)), pipes=pipes)
    return ModelTarget(f"t2na-{pipes}", "tofino2", switch, pipes)


def _front_ports(pipes: int) -> tuple[int, ...]:
    """Four ports, spread over the pipes."""
    return tuple(PORTS_PER_PIPE * (index % pipes) + index // pipes for index in range(4))
