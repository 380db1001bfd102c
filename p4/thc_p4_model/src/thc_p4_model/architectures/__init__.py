"""The switches: v1model (bmv2's simple_switch), TNA and T2NA."""

from typing import Any

from thc_p4_model.architectures.tna import TnaSwitch
from thc_p4_model.architectures.v1model import V1ModelSwitch
from thc_p4_model.interfaces import Program

__all__ = ["TnaSwitch", "V1ModelSwitch", "architecture_of", "new_switch"]


def architecture_of(program: Program) -> str:
    """`v1model`, `tna` or `t2na`: by the architecture file the program includes."""
    if "standard_metadata_t" in program.types:
        return "v1model"
    return "t2na" if "ghost_intrinsic_metadata_t" in program.types else "tna"


def new_switch(program: Program, **options: Any) -> V1ModelSwitch | TnaSwitch:
    """A switch of the program's architecture, with the options of its class."""
    return V1ModelSwitch(program, **options) if architecture_of(program) == "v1model" else TnaSwitch(program, **options)
