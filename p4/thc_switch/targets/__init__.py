"""Targets of a plan: BFRT Python for bfshell, BFRT gRPC, simple_switch_CLI, and the P4 model in process."""

import enum
import importlib
from collections.abc import Iterable

from byteps_thc._base.errors import ConfigurationError
from thc_switch.description import SwitchDescription
from thc_switch.plan import Operation
from thc_switch.targets import bfshell, bmv2
from thc_switch.targets.base import SwitchControl
from thc_switch.targets.grpc import GrpcControl

#: The command that installs the P4 model, in a clone.
INSTALL_MODEL = "pip install ./p4/thc_p4_model"


class Target(enum.Enum):
    """How to reach a switch."""

    MODEL = "model"
    BMV2 = "bmv2"
    BFSHELL = "bfshell"
    GRPC = "grpc"


def render(operations: Iterable[Operation], target: Target, switch: SwitchDescription) -> str:
    """Return the text for a target: a bfshell script, CLI commands, or one line per operation."""
    _check(target, switch)
    if target is Target.BFSHELL:
        return bfshell.script(operations, switch)
    if target is Target.BMV2:
        return bmv2.commands(operations)
    return "".join(f"{operation}\n" for operation in operations)


def connect(target: Target, switch: SwitchDescription) -> SwitchControl:
    """Return a connection to a running switch; ConfigurationError if a needed package is not installed."""
    _check(target, switch)
    if target is Target.MODEL:
        raise ConfigurationError(
            "the P4 model runs in the process that uses it (ModelControl): thc switch install --target model "
            "tries a description on a new one, make demo-switch trains through one"
        )
    if target is Target.BMV2:
        return bmv2.Bmv2Control(switch.control_address or bmv2.DEFAULT_ADDRESS)
    return GrpcControl(switch) if target is Target.GRPC else bfshell.BfshellControl(switch)


def require_model() -> None:
    """Raise ConfigurationError if the P4 model, which other targets do not need, is not installed."""
    try:
        importlib.import_module("thc_p4_model.compiler")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the P4 model is not installed ({error}): in a clone of byteps_thc, {INSTALL_MODEL}"
        ) from error


def new_model(switch: SwitchDescription) -> SwitchControl:
    """Return a switch of the P4 model with the program for the description's architecture."""
    require_model()
    from thc_switch.targets import model  # other targets do not need the model

    return model.new_switch_with_control(switch)[1]


def _check(target: Target, switch: SwitchDescription) -> None:
    expected = (Target.BMV2,) if switch.architecture == "v1model" else (Target.BFSHELL, Target.GRPC)
    if target not in (Target.MODEL, *expected):
        names = " or ".join(option.value for option in expected)
        raise ConfigurationError(f"{target.value} does not reach a {switch.architecture} switch: use {names}")
