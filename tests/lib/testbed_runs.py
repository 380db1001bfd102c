"""Testbeds whose processes are shell commands; a run of one in a process of its own."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import TypeAdapter

from thc_lab.namespaces import Cable, CableEnd
from thc_lab.testbed import run as running
from thc_lab.testbed.cli import run_to_end
from thc_lab.testbed.process import Plan, PlannedFile, PlannedHost, PlannedProcess, Role

#: A limit of all waits: the machine may be busy.
DEADLINE_S = 120.0
FIRST, SECOND = "first", "second"
#: A server that serves until it is ended.
SERVER = "echo listening; exec sleep 600"


def process(name: str, host: str, script: str, role: Role = "worker", after: tuple[str, ...] = ()) -> PlannedProcess:
    """A shell command as a process; a server is ready when it says that it listens."""
    ready = None if role == "worker" else "^listening"
    return PlannedProcess(name, host, role, ("sh", "-c", script), ready=ready, ready_timeout_s=60.0, after=after)


def two_hosts(*workers: str, server: str = SERVER) -> Plan:
    """A server on the first host and these workers on the second, each a shell command: namespaces with a cable."""
    servers = [process("server", FIRST, server, role="aggregator")]
    commands = [process(f"worker{n}", SECOND, script, after=("server",)) for n, script in enumerate(workers)]
    ends = [CableEnd(host, "data0", f"02:00:00:00:99:0{n}", f"10.79.0.{n}/24") for n, host in ((1, FIRST), (2, SECOND))]
    return Plan(
        name="test",
        reach="namespaces",
        hosts=tuple(PlannedHost(host, python=sys.executable) for host in (FIRST, SECOND)),
        cables=(Cable(*ends),),
        bridges=(),
        files=(PlannedFile(FIRST, "@run@/folder"), PlannedFile(FIRST, "@run@/folder/jobs.txt", "jobs")),
        processes=(*servers, *commands),
        resolved={},
        addresses=(),
    )


def run(plan: Plan, *, private: Mapping[str, str] | None = None, time_limit_s: float = DEADLINE_S) -> list[str]:
    """Run in this process; return the output of all processes."""
    lines: list[str] = []
    work = running.run(
        plan, lambda _: None, lambda process, line: lines.append(f"[{process.name}] {line}"), time_limit_s, private
    )
    asyncio.run(work)
    return lines


def start_run(plan: Plan) -> subprocess.Popen[str]:
    """`thc testbed run` of a plan, as a process of its own."""
    text = TypeAdapter(Plan).dump_json(plan).decode()
    path = os.pathsep.join(part for part in sys.path if part)
    return subprocess.Popen(
        [sys.executable, "-P", __file__, text], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )


def await_line(process: subprocess.Popen[str], wanted: str) -> str:
    """The rest of the first line that begins so."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(wanted):
            return line.removeprefix(wanted).strip()
    raise AssertionError(f"it ended without {wanted!r}")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(true: Callable[[], bool]) -> None:
    """Fail if it does not become true."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def main() -> None:
    plan = TypeAdapter(Plan).validate_json(sys.argv[1])
    work = running.run(
        plan, print, lambda process, line: print(f"[{process.name}] {line}", flush=True), time_limit_s=DEADLINE_S
    )
    run_to_end(work)


if __name__ == "__main__":
    main()
