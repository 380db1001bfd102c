"""Tables of processes, for `thc testbed status`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.markup import escape
from rich.table import Table

from thc_lab.testbed.failure import how_it_ended
from thc_lab.testbed.process import Plan

_STYLES = {"running": "green", "ended": "cyan", "lost": "bold red"}


def status_table(plan: Plan, found: Mapping[str, list[dict[str, Any]]], unreached: Mapping[str, str]) -> Table:
    """One row per process of the plan. found: by host, what its keeper says; unreached: hosts, and why."""
    table = Table(title=f"testbed {plan.name}", title_justify="left")
    for column in ("process", "host", "state", "for"):
        table.add_column(column, no_wrap=True)
    table.add_column("process id", justify="right")
    kept = {each["name"]: each for each in (each for list_ in found.values() for each in list_)}
    for process in plan.processes:
        known = kept.get(process.name)
        if process.host in unreached:
            table.add_row(process.name, process.host, "[bold red]host not reached[/]", "", "")
        elif known is None:
            table.add_row(process.name, process.host, "not started", "", "")
        else:
            state = known["state"]
            words = "running" if state == "running" else how_it_ended(known["status"])
            style = "bold red" if state == "ended" and known["status"] != 0 else _STYLES[state]
            age, pid = (
                (str(timedelta(seconds=int(known["age_s"]))), str(known["pid"])) if state == "running" else ("", "")
            )
            table.add_row(process.name, process.host, f"[{style}]{escape(words)}[/]", age, pid)
    return table
