"""The switch's control plane: job descriptions, what the P4 tables hold for them, ways to install it, and the agent.

deployment = Deployment.load(Path("jobs.toml"))
control = ModelControl(switch)            # or GrpcControl, BfshellControl, Bmv2Control of p4.control.targets
control.install(plan(deployment))
agent = SwitchAgent(deployment, control)  # answers HELLO and GOODBYE from the CPU port
"""

from __future__ import annotations

from p4.control.agent import SwitchAgent
from p4.control.allocation import JobAllocation, allocate
from p4.control.description import (
    Deployment,
    JobDescription,
    RecirculationPort,
    Route,
    Station,
    SwitchDescription,
    WorkerDescription,
)
from p4.control.plan import Plan
from p4.control.planner import plan
from p4.control.targets.base import SwitchControl
from p4.control.targets.model import ModelControl

__all__ = [
    "Deployment",
    "JobAllocation",
    "JobDescription",
    "ModelControl",
    "Plan",
    "RecirculationPort",
    "Route",
    "Station",
    "SwitchAgent",
    "SwitchControl",
    "SwitchDescription",
    "WorkerDescription",
    "allocate",
    "plan",
]
