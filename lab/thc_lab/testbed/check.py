"""`thc testbed check`: whether a plan can run on its hosts. It changes nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

from byteps_thc.errors import ThcError
from thc_lab.testbed.hosts import namespaces
from thc_lab.testbed.hosts.kept import KeptHost
from thc_lab.testbed.hosts.local import LocalHost
from thc_lab.testbed.hosts.reach import reached_or_not
from thc_lab.testbed.hosts.together import together
from thc_lab.testbed.process import Plan, PlannedProcess
from thc_lab.testbed.setup import Undoable
from thc_switch.targets import INSTALL_MODEL

#: Its own probes have deadlines; a host that is loaded takes its time for all of them.
_DOCTOR_TIMEOUT_S = 300.0

#: to do: `up` does it. note: slower, or not needed here.
Verdict = Literal["ok", "to do", "note", "problem"]
_STYLES = {"ok": "green", "to do": "cyan", "note": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Line:
    """What was found about one thing on one host, with what to change."""

    host: str
    what: str
    verdict: Verdict
    text: str


async def check(plan: Plan) -> list[Line]:
    """Look at all hosts at the same time; lines in the order of the plan's hosts."""
    if plan.reach == "namespaces":
        return await _check_namespaces(plan)
    async with reached_or_not(plan) as (hosts, unreached):
        found = await together(_check_host(plan, kept, [name]) for name, kept in hosts.items())
    by_host = dict(zip(hosts, found, strict=True))
    by_host |= {name: [Line(name, "ssh", "problem", str(error))] for name, error in unreached.items()}
    return [line for host in plan.hosts for line in by_host[host.name]]


async def _check_namespaces(plan: Plan) -> list[Line]:
    """The hosts are to be made, on this machine: what they need is the same for all."""
    machine = "this machine"
    reason = namespaces.why_not()
    root = Line(machine, "network namespaces", "problem" if reason else "ok", reason or "this process may make them")
    kept = KeptHost(LocalHost(machine, plan.hosts[0].python), f"{plan.name}/check")
    lines = await _check_host(plan, kept, [host.name for host in plan.hosts], ports=False)
    return [root, *lines]


async def _check_host(plan: Plan, kept: KeptHost, names: Sequence[str], *, ports: bool = True) -> list[Line]:
    """names: of the plan's hosts that are this one. ports: whether theirs can be tried."""
    try:
        return [line async for line in _lines_of(plan, kept, names, ports=ports)]
    except ThcError as error:
        return [Line(kept.name, "keeper", "problem", str(error))]


async def _lines_of(plan: Plan, kept: KeptHost, names: Sequence[str], *, ports: bool) -> AsyncIterator[Line]:
    processes = [process for process in plan.processes if process.host in names]
    programs = list(dict.fromkeys(process.argv[0] for process in processes))
    running = [each for each in await kept.processes() if each["state"] == "running"]
    # A process of this testbed that is up has its ports.
    listens = [] if running or not ports else [address for process in processes for address in process.listens]
    found = await kept.probe(programs, listens)
    for line in versions(kept.name, found, processes):
        yield line
    if (line_of_login := login(kept.name, found["user_id"], processes)) is not None:
        yield line_of_login
    missing = found["missing_programs"]
    yield Line(kept.name, "programs", "problem" if missing else "ok", _listed(missing, "not there", programs))
    if listens:
        refused = found["refused_addresses"]
        yield Line(kept.name, "ports", "problem" if refused else "ok", _listed(refused, "cannot be bound", listens))
    if running:
        yield Line(kept.name, "processes", "note", f"up: {', '.join(each['name'] for each in running)}")
    undoable = await Undoable.on(kept)
    for setup in plan.setups:
        if setup.host in names and ports:
            for step in setup.steps:
                done = await undoable.is_done(step)
                yield Line(kept.name, "set-up", "ok" if done else "to do", step.what)
    for line in await _doctor(kept):
        yield line


def versions(host: str, found: dict[str, Any], processes: Sequence[PlannedProcess]) -> Iterator[Line]:
    """Say which of the packages that a host's processes need are there."""
    here, there = version("byteps_thc"), found["byteps_thc"]
    same = here == there
    text = f"{there}, Python {found['python']}" + ("" if same else f"; here it is {here}: install the same everywhere")
    yield Line(host, "byteps_thc", "ok" if same else "problem", text)
    if any(process.role in ("scheduler", "server") for process in processes):
        byteps = found["byteps"]
        text = byteps or "not installed for this Python: make byteps"
        yield Line(host, "BytePS", "ok" if byteps else "problem", text)
    if any(process.role == "switch" and "model" in process.argv for process in processes):
        model = found["thc_p4_model"]
        text = model or f"not installed for this Python: in a clone of byteps_thc, {INSTALL_MODEL}"
        yield Line(host, "P4 model", "ok" if model else "problem", text)


def login(host: str, user_id: int, processes: Sequence[PlannedProcess]) -> Line | None:
    """A problem when a host's processes need root, and the login there is another user's."""
    names = [process.name for process in processes if _needs_root(process)]
    if user_id == 0 or not names:
        return None
    text = f"{', '.join(names)}: DPDK's devices and a switch's raw sockets need root: log in as root"
    return Line(host, "login", "problem", text)


def _needs_root(process: PlannedProcess) -> bool:
    dpdk = "--dpdk" in process.argv or process.environment.get("THC_BACKEND") == "dpdk"
    return dpdk or process.role in ("switch", "agent")


def _listed(bad: Sequence[str], what: str, all_: Sequence[str]) -> str:
    return f"{what}: {', '.join(bad)}" if bad else ", ".join(all_)


async def _doctor(kept: KeptHost) -> list[Line]:
    """What `thc doctor` calls a problem there; one line when there is none."""
    command = [kept.host.python, "-P", "-m", "byteps_thc", "doctor", "--json"]
    outcome = await kept.host.run(command, timeout_s=_DOCTOR_TIMEOUT_S)
    try:
        findings = json.loads(outcome.output)["findings"]
    except (json.JSONDecodeError, KeyError):
        return [Line(kept.name, "thc doctor", "problem", f"`{shlex.join(command)}` failed with {outcome.reason}")]
    lines = []
    for finding in findings:
        if finding["state"] in ("missing", "problem"):
            text = finding["meaning"] + (f": {finding['command']}" if finding["command"] else "")
            lines.append(Line(kept.name, finding["check"], "problem" if finding["fails"] else "note", text))
    return lines or [Line(kept.name, "thc doctor", "ok", "nothing to mend")]


def as_table(plan: Plan, lines: Sequence[Line]) -> Table:
    """One row per line, the hosts ruled off."""
    table = Table(title=f"testbed {plan.name}", title_justify="left")
    for column in ("host", "check", "state"):
        table.add_column(column, no_wrap=True)
    table.add_column("what it means", overflow="fold")
    before = None
    for line in lines:
        if before not in (None, line.host):
            table.add_section()
        shown = f"[{_STYLES[line.verdict]}]{line.verdict}[/]"
        table.add_row("" if before == line.host else line.host, escape(line.what), shown, escape(line.text))
        before = line.host
    return table
