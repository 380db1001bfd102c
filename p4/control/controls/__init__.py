"""One class per P4 control: what its tables hold for a deployment."""

from __future__ import annotations

from p4.control.controls.aggregation_blocks import AggregationBlocks
from p4.control.controls.base import Control
from p4.control.controls.forwarding import Forwarding
from p4.control.controls.job_check import JobCheck
from p4.control.controls.pass_control import PassControl
from p4.control.controls.pass_row import PassRow
from p4.control.controls.port_role import PortRole
from p4.control.controls.replica import Replica
from p4.control.controls.service import Service
from p4.control.controls.slot_check import SlotCheck

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
    Replica,
)

__all__ = [
    "CONTROLS",
    "AggregationBlocks",
    "Control",
    "Forwarding",
    "JobCheck",
    "PassControl",
    "PassRow",
    "PortRole",
    "Replica",
    "Service",
    "SlotCheck",
]
