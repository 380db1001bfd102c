"""Testbeds in network namespaces whose processes are shell commands; a run of one in a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from pydantic import TypeAdapter

from thc_lab.testbed import operations
from thc_lab.testbed.hosts.namespaces import namespace_of
from thc_lab.testbed.process import (
    Cable,
    CableEnd,
    HostSetup,
    Plan,
    PlannedFile,
    PlannedHost,
    PlannedProcess,
    Role,
)
from thc_lab.testbed.run_cli import run_to_end

#: Of everything that is waited for: the machine may be busy.
DEADLINE_S = 120.0
FIRST, SECOND = "first", "second"
#: A server that serves until it is ended.
SERVER = "echo listening; exec sleep 600"


def process(name: str, host: str, script: str, role: Role = "worker", after: tuple[str, ...] = ()) -> PlannedProcess:
    """A shell command as a process; a server is ready when it says that it listens."""
    ready = None if role == "worker" else "^listening"
    return PlannedProcess(name, host, role, ("sh", "-c", script), ready=ready, ready_timeout_s=60.0, after=after)


def two_hosts(name: str, folder: Path, *workers: str, server: str = SERVER, setup: HostSetup | None = None) -> Plan:
    """Two namespaces with a cable; a server on the first, and these workers on the second, each a shell command."""
    servers = [process("server", FIRST, server, role="aggregator")]
    commands = [process(f"worker{n}", SECOND, script, after=("server",)) for n, script in enumerate(workers)]
    ends = [CableEnd(host, "data0", f"02:00:00:00:99:0{n}", f"10.79.0.{n}/24") for n, host in ((1, FIRST), (2, SECOND))]
    return Plan(
        name=name,
        reach="namespaces",
        hosts=tuple(PlannedHost(host, None, python=sys.executable) for host in (FIRST, SECOND)),
        cables=(Cable(*ends),),
        files=(PlannedFile(FIRST, str(folder / "run")), PlannedFile(FIRST, str(folder / "run/jobs.txt"), "jobs")),
        setups=() if setup is None else (setup,),
        processes=(*servers, *commands),
        resolved={},
        addresses=(),
    )


def start_run(plan: Plan) -> subprocess.Popen[str]:
    """`thc testbed run` of a plan, as a process of its own."""
    text = TypeAdapter(Plan).dump_json(plan).decode()
    command = [sys.executable, "-P", __file__, text]
    path = os.pathsep.join(part for part in sys.path if part)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path})


def namespaces_of(plan: Plan) -> list[str]:
    """Those of the plan's hosts that are there."""
    names = [namespace_of(plan.name, host.name) for host in plan.hosts]
    return [name for name in names if Path("/run/netns", name).exists()]


def run(plan: Plan, lines: list[str]) -> str | None:
    """Run in this process; what the workers print is added to `lines`."""
    work = operations.run(plan, lambda _: None, lambda name, line: lines.append(f"[{name}] {line}"), DEADLINE_S)
    return asyncio.run(work)


def up(plan: Plan) -> None:
    """Bring it up in this process."""
    asyncio.run(operations.up(plan, lambda _: None))


def down(plan: Plan) -> None:
    """Take it down in this process."""
    asyncio.run(operations.down(plan.name, lambda _: None))


def states(plan: Plan) -> dict[str, tuple[str, int]]:
    """State and process id of each process that was started."""
    found, unreached = asyncio.run(operations.processes(plan))
    assert not unreached
    return {each["name"]: (each["state"], each["pid"]) for kept in found.values() for each in kept}


def is_alive(pid: int) -> bool:
    """Whether a process has not ended."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX"


def main() -> None:
    """The process of start_run."""
    plan = TypeAdapter(Plan).validate_json(sys.argv[1])
    run_to_end(operations.run(plan, print, lambda name, line: print(f"[{name}] {line}", flush=True), DEADLINE_S))


if __name__ == "__main__":
    main()
