"""A plan for people."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

from thc_lab.testbed.process import JOB_DESCRIPTION, Plan, PlannedProcess
from thc_switch.controls import Forwarding, JobCheck, Replica, Service, SlotCheck
from thc_switch.controls import plan as plan_switch
from thc_switch.description import Deployment


def as_text(plan: Plan) -> str:
    """All that a run does, in its order; commands are quoted for a shell."""
    lines = [f"testbed {plan.name}: {len(plan.workers)} workers' processes on {plan.reach}"]
    for title, section in (
        ("settings", _table(plan.resolved.items())),
        ("addresses", _table((f"{who}, {kind}", address) for who, kind, address in plan.addresses)),
        ("hosts", _table((host.name, host.management_ip or "") for host in plan.hosts)),
        ("cables", _cables(plan)),
        ("files", _files(plan)),
        ("switch", _switch(plan)),
        ("processes", _processes(plan)),
    ):
        if listed := list(section):
            lines += ["", title, *(f"  {line}" for line in listed)]
    return "\n".join(lines) + "\n"


def deployment_in(plan: Plan) -> Deployment | None:
    """The switch's job description, if the testbed has a switch."""
    for file in plan.files:
        if file.text is not None and file.path.endswith(f"/{JOB_DESCRIPTION}"):
            return Deployment(**json.loads(file.text))
    return None


def _table(rows: Any) -> Iterator[str]:
    listed = list(rows)
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        yield f"{name:{width}}  {value}"


def _cables(plan: Plan) -> Iterator[str]:
    for cable in plan.cables:
        ends = [f"{end.host}:{end.interface} {end.address}".rstrip() for end in (cable.a, cable.b)]
        yield " <-> ".join(ends)


def _files(plan: Plan) -> Iterator[str]:
    for file in plan.files:
        kind = "folder" if file.text is None else f"{len(file.text)} bytes"
        yield f"{file.host}:{file.path}  {kind}"
        yield from (f"    {line}" for line in (file.text or "").splitlines())


def _switch(plan: Plan) -> Iterator[str]:
    deployment = deployment_in(plan)
    if deployment is None:
        return
    for job in deployment.jobs:
        yield f"job {job.job_id}: {len(job.workers)} workers, {job.slots} slots, granularity {job.table.granularity}"
        for number, worker in enumerate(job.workers):
            yield f"    worker {number}: {worker.ip}:{worker.udp_port}, {worker.mac}, port {worker.port}"
    yield from _switch_steps(deployment)
    yield "and lookup tables, rows and ports, the same for all jobs: `thc switch plan` prints them"


def _switch_steps(deployment: Deployment) -> list[str]:
    """The switch's view of jobs and hosts."""
    return plan_switch(deployment, [Service, JobCheck, SlotCheck, Forwarding, Replica]).lines()


def _processes(plan: Plan) -> Iterator[str]:
    for process in plan.processes:
        yield f"{process.name} on {process.host}{_order(process)}"
        if process.folder is not None:
            yield f"    cd {shlex.quote(process.folder)}"
        for name, value in process.environment.items():
            yield f"    {name}={shlex.quote(value)}"
        yield from (f"    {name}: its value is in the description" for name in process.private)
        yield f"    {shlex.join(process.argv)}"


def _order(process: PlannedProcess) -> str:
    after = f", after {', '.join(process.after)}" if process.after else ""
    ready = f", ready when it prints {process.ready!r}" if process.ready is not None else ""
    return after + ready
