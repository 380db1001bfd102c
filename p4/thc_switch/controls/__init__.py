"""One class per P4 control: what its tables hold for a deployment."""

from __future__ import annotations

from thc_switch.controls.aggregation_blocks import AggregationBlocks
from thc_switch.controls.base import Control
from thc_switch.controls.forwarding import Forwarding
from thc_switch.controls.job_check import JobCheck
from thc_switch.controls.leaf import Leaf
from thc_switch.controls.pass_control import PassControl
from thc_switch.controls.pass_row import PassRow
from thc_switch.controls.port_role import PortRole
from thc_switch.controls.replica import Replica
from thc_switch.controls.service import Service
from thc_switch.controls.slot_check import SlotCheck

#: In the order a packet meets them.
CONTROLS: tuple[type[Control], ...] = (
    PortRole,
    Service,
    JobCheck,
    SlotCheck,
    PassRow,
    AggregationBlocks,
    PassControl,
    Forwarding,
    Leaf,
    Replica,
)

__all__ = [
    "CONTROLS",
    "AggregationBlocks",
    "Control",
    "Forwarding",
    "JobCheck",
    "Leaf",
    "PassControl",
    "PassRow",
    "PortRole",
    "Replica",
    "Service",
    "SlotCheck",
]
