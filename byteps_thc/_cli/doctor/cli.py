"""The `thc doctor` command."""

from __future__ import annotations

import json as json_format
from typing import Annotated

import typer
from rich.console import Console

from byteps_thc._cli.consoles import table_console
from byteps_thc._cli.doctor import report
from byteps_thc._cli.doctor.examination import examine
from byteps_thc._cli.doctor.server import parse_server
from byteps_thc._cli.doctor.visit import Visit


def doctor(
    server: Annotated[
        list[str] | None,
        typer.Option("--server", metavar="HOST[:PORT]", help="Also join this server; may be repeated."),
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option("--key-file", metavar="FILE", envvar="THC_KEY_FILE", help="Key file of the servers."),
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
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what works on this host, what is missing, and which command mends it. Exit code 1: something needed fails."""
    visits = [Visit(parse_server(text), key_file, job) for text in server or []]
    with Console(stderr=True).status("Checking this host ..."):
        sections = examine(visits)
    results = report.as_json(sections)
    if json:
        typer.echo(json_format.dumps(results))
    else:
        console = table_console()
        console.print(report.as_table(sections))
        console.print(report.summary(sections), soft_wrap=True)
    if not results["ok"]:
        raise typer.Exit(1)
