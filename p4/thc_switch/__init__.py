"""The switch's control plane: job descriptions, their P4 table entries, ways to install these, and the agent.

deployment = Deployment.load(Path("jobs.toml"))
control = GrpcControl(deployment.switch)  # or BfshellControl, Bmv2Control, ModelControl of thc_switch.targets
control.install(plan(deployment))
agent = SwitchAgent(deployment, control)  # answers HELLO and GOODBYE from the CPU port
"""

from thc_switch.agent import SwitchAgent
from thc_switch.allocation import JobAllocation, allocate
from thc_switch.controls import plan
from thc_switch.description import (
    Deployment,
    JobDescription,
    RecirculationPort,
    Route,
    Station,
    SwitchDescription,
    WorkerDescription,
)
from thc_switch.plan import Plan
from thc_switch.targets.base import SwitchControl
from thc_switch.upstream_description import UpstreamDescription

__all__ = [
    "Deployment",
    "JobAllocation",
    "JobDescription",
    "Plan",
    "RecirculationPort",
    "Route",
    "Station",
    "SwitchAgent",
    "SwitchControl",
    "SwitchDescription",
    "UpstreamDescription",
    "WorkerDescription",
    "allocate",
    "plan",
]
