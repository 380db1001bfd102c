"""Ways to talk to a switch: BFRT Python for bfshell, BFRT gRPC, simple_switch_CLI, and the P4 model in process."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from byteps_thc.errors import ConfigurationError
from p4.control.description import SwitchDescription
from p4.control.limits import PIPE_COUNTS
from p4.control.plan import Operation
from p4.control.targets import bfshell, bmv2
from p4.control.targets.base import SwitchControl
from p4.control.targets.grpc import GrpcControl
from p4.control.targets.model import ModelControl
from p4.model import compile_program
from p4.model.architectures import new_switch
from p4.programs import INCLUDE_FOLDER, program_path

#: Name of a program, and preprocessor symbols.
_PROGRAMS: dict[str, tuple[str, dict[str, str]]] = {
    "v1model": ("v1model", {}),
    "tofino1": ("tna", {}),
    "tofino2": ("tna", {"THC_TOFINO2": ""}),
}


class Target(enum.Enum):
    """How to reach a switch."""

    MODEL = "model"
    BMV2 = "bmv2"
    BFSHELL = "bfshell"
    GRPC = "grpc"


def render(operations: Iterable[Operation], target: Target, switch: SwitchDescription) -> str:
    """Return what a target would be told: a bfshell script, CLI commands, or one line per operation."""
    _check(target, switch)
    if target is Target.BFSHELL:
        return bfshell.script(operations, switch)
    if target is Target.BMV2:
        return bmv2.commands(operations)
    return "".join(f"{operation}\n" for operation in operations)


def connect(target: Target, switch: SwitchDescription) -> SwitchControl:
    """Return a connection to a running switch; ConfigurationError when what it takes is not installed."""
    _check(target, switch)
    if target is Target.MODEL:
        raise ConfigurationError(
            "the P4 model runs in the process that uses it (ModelControl): thc switch install --target model "
            "tries a description on a new one, make demo-switch trains through one"
        )
    if target is Target.BMV2:
        return bmv2.Bmv2Control(switch.control_address or bmv2.DEFAULT_ADDRESS)
    return GrpcControl(switch) if target is Target.GRPC else bfshell.BfshellControl(switch)


def new_model(switch: SwitchDescription) -> ModelControl:
    """Return a switch of the P4 model that runs our program for the architecture of the description."""
    name, defines = _PROGRAMS[switch.architecture]
    program = compile_program(program_path(name), [INCLUDE_FOLDER], defines)
    if switch.architecture == "v1model":
        return ModelControl(new_switch(program))
    ports = [entry.port for entry in switch.recirculation]
    pipes = next(count for count in PIPE_COUNTS if switch.pipe_of(max(ports)) < count)
    return ModelControl(new_switch(program, pipes=pipes), pipes)


def _check(target: Target, switch: SwitchDescription) -> None:
    expected = (Target.BMV2,) if switch.architecture == "v1model" else (Target.BFSHELL, Target.GRPC)
    if target not in (Target.MODEL, *expected):
        names = " or ".join(option.value for option in expected)
        raise ConfigurationError(f"{target.value} does not reach a {switch.architecture} switch: use {names}")
