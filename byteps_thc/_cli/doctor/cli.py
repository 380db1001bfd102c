"""The `thc doctor` command."""

import functools
import json as json_format
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._cli.consoles import table_console
from byteps_thc._cli.doctor import dpdk, frameworks, installation, sockets
from byteps_thc._cli.doctor.finding import Check, Finding, State, run_check
from byteps_thc._cli.doctor.server import check_servers, parse_server
from byteps_thc._cli.doctor.way import Visit

#: Checks of this host, in the order in which they are shown.
_CHECKS: dict[str, tuple[Check, ...]] = {
    "package": (
        installation.check_modules,
        installation.check_kernels,
        installation.check_cores,
        installation.check_thc_ps,
    ),
    "training": (frameworks.check_torch, frameworks.check_byteps, frameworks.check_shared_memory),
    "network": (sockets.check_port, sockets.check_socket_buffer),
    "DPDK": (dpdk.check_dpdk,),
    "runs that were killed": (frameworks.check_leftovers,),
}
_STYLES = {State.OK: "green", State.OPTIONAL: "cyan", State.MISSING: "bold red", State.PROBLEM: "bold yellow"}
#: Findings by the part of the system that they are about.
Sections = dict[str, Sequence[Finding]]


def doctor(
    server: Annotated[
        list[str] | None,
        typer.Option("--server", metavar="HOST[:PORT]", help="Also join this server; may be repeated."),
    ] = None,
    key_file: Annotated[
        str | None, typer.Option("--key-file", metavar="FILE", envvar="THC_KEY_FILE", help="Key file of the servers.")
    ] = None,
    job: Annotated[
        int | None,
        typer.Option(
            "--job",
            min=0,
            max=(1 << 16) - 1,
            help="Job number for --server, which no training may use. Default: random. Needed if the key file has "
            "keys for single jobs.",
        ),
    ] = None,
    device: Annotated[
        bool, typer.Option("--device", help="Check GPUs instead, and averages over the ranks if torchrun starts it.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what works on this host, what is missing, and which command mends it. Exit code 1: something needed fails."""
    if device and server:
        raise ConfigurationError("--server and --device exclude each other: run thc doctor once with each")
    visits = [Visit(parse_server(text), key_file, job) for text in server or []]
    with Console(stderr=True).status("Checking this host ..."):
        sections = _examine_gpu() if device else _examine(visits)
    failing = [finding.check for findings in sections.values() for finding in findings if finding.fails]
    if device and os.environ.get("RANK", "0") != "0":
        pass  # rank 0 prints
    elif json:
        typer.echo(json_format.dumps(_as_json(sections)))
    else:
        console = table_console(piped_columns=120)
        console.print(_as_table(sections))
        works = "What byteps_thc needs works. Optional parts are needed only for what their lines say."
        console.print(f"To be mended: {', '.join(failing)}." if failing else works, soft_wrap=True)
    if device:
        from byteps_thc._cli.doctor.device import leave_ranks

        leave_ranks()
    if failing:
        raise typer.Exit(1)


def _examine(visits: Sequence[Visit]) -> Sections:
    """Run all checks, and then visit these servers: the others would keep processors busy while rates are measured."""
    checks = [check for section in _CHECKS.values() for check in section]
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        found = iter(list(pool.map(run_check, checks)))
    sections: Sections = {
        title: [finding for _ in section for finding in next(found)] for title, section in _CHECKS.items()
    }
    if visits:
        sections["servers"] = run_check(functools.partial(check_servers, visits))
    return sections


def _examine_gpu() -> Sections:
    import byteps_thc._base.needs_torch  # noqa: F401
    from byteps_thc._cli.doctor.device import check_gpus

    return {"GPU": check_gpus()}


def _as_table(sections: Sections) -> Table:
    table = Table(title="thc doctor", title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("what it means", ratio=3, overflow="fold")
    table.add_column("command", ratio=2, overflow="fold")
    for findings in sections.values():
        for finding in findings:
            state = Text(finding.state.value, "bold red" if finding.fails else _STYLES[finding.state])
            table.add_row(finding.check, state, escape(finding.meaning), escape(finding.command))
        table.add_section()
    return table


def _as_json(sections: Sections) -> dict[str, Any]:
    findings = [
        {"section": title, **asdict(finding), "state": finding.state.value, "fails": finding.fails}
        for title, found in sections.items()
        for finding in found
    ]
    return {"ok": not any(finding["fails"] for finding in findings), "findings": findings}
