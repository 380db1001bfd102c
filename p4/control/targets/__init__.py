"""Ways to talk to a switch: BFRT Python for bfshell, BFRT gRPC, simple_switch_CLI, and the P4 model in process."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from byteps_thc.errors import ConfigurationError
from p4.control.description import SwitchDescription
from p4.control.plan import Operation
from p4.control.targets import bfshell, bmv2
from p4.control.targets.base import SwitchControl
from p4.control.targets.grpc import GrpcControl


class Target(enum.Enum):
    """How to reach a switch."""

    MODEL = "model"
    BMV2 = "bmv2"
    BFSHELL = "bfshell"
    GRPC = "grpc"


def render(operations: Iterable[Operation], target: Target, switch: SwitchDescription) -> str:
    """Return what a target would be told: a bfshell script, CLI commands, or one line per operation."""
    if target is Target.BFSHELL:
        return bfshell.script(operations, switch)
    if target is Target.BMV2:
        return bmv2.commands(operations)
    return "".join(f"{operation}\n" for operation in operations)


def connect(target: Target, switch: SwitchDescription) -> SwitchControl:
    """Return a connection to a running switch; ConfigurationError when what it takes is not installed."""
    expected = (Target.BMV2,) if switch.architecture == "v1model" else (Target.BFSHELL, Target.GRPC)
    if target not in expected:
        raise ConfigurationError(
            f"--target {target.value} cannot reach a running {switch.architecture} switch: use "
            + " or ".join(option.value for option in expected)
        )
    if target is Target.BMV2:
        return bmv2.Bmv2Control(switch.control_address or bmv2.DEFAULT_ADDRESS)
    return GrpcControl(switch) if target is Target.GRPC else bfshell.BfshellControl(switch)
