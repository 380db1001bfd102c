"""From a deployment to a plan."""

from __future__ import annotations

from collections.abc import Sequence

from thc_switch.allocation import allocate
from thc_switch.controls import CONTROLS, Control
from thc_switch.description import Deployment
from thc_switch.plan import Plan


def plan(deployment: Deployment, parts: Sequence[type[Control]] = CONTROLS) -> Plan:
    """Compute everything the switch must be told; ConfigurationError when the jobs do not fit. parts: only these."""
    allocations = allocate(deployment)
    controls = [control(deployment, allocations) for control in parts]
    return Plan(
        tables=tuple(table for control in controls for table in control.tables()),
        defaults=tuple(default for control in controls for default in control.defaults()),
        entries=tuple(entry for control in controls for entry in control.entries()),
        registers=tuple(register for control in controls for register in control.registers()),
        groups=tuple(group for control in controls for group in control.groups()),
        ports=deployment.switch.ports_to_bring_up,
        recirculation=deployment.switch.recirculation,
    )
