"""One class per P4 control, which computes the control's entries for a deployment, and the plan of all controls."""

from collections.abc import Sequence

from thc_switch.controls.base import Control
from thc_switch.controls.egress import Leaf, Replica
from thc_switch.controls.ingress import (
    AggregationBlocks,
    Forwarding,
    PassControl,
    PassRow,
    PortRole,
    Service,
    SlotCheck,
)
from thc_switch.controls.job_check import JobCheck
from thc_switch.description import Deployment
from thc_switch.plan import ClearRegister, DefaultAction, MulticastGroup, Plan, TableEntry

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

__all__ = ["CONTROLS", "AggregationBlocks", "Forwarding", "JobCheck", "Leaf", "Replica", "Service", "SlotCheck", "plan"]


def plan(deployment: Deployment, parts: Sequence[type[Control]] = CONTROLS) -> Plan:
    """Compute all entries of the switch; ConfigurationError if the jobs do not fit. parts: only these controls."""
    contents = [operation for control in parts for operation in control.contents(deployment)]
    return Plan(
        tables=tuple(control.full_name(table) for control in parts for table in control.TABLES),
        defaults=tuple(operation for operation in contents if isinstance(operation, DefaultAction)),
        entries=tuple(operation for operation in contents if isinstance(operation, TableEntry)),
        registers=tuple(operation for operation in contents if isinstance(operation, ClearRegister)),
        groups=tuple(operation for operation in contents if isinstance(operation, MulticastGroup)),
        ports=deployment.switch.ports_to_bring_up,
        recirculation=deployment.switch.recirculation,
    )
