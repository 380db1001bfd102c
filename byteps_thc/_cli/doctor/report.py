"""Findings as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from byteps_thc._cli.doctor.examination import Section
from byteps_thc._cli.doctor.finding import State

_STYLES = {State.OK: "green", State.OPTIONAL: "cyan", State.MISSING: "bold red", State.PROBLEM: "bold yellow"}


def as_table(sections: Sequence[Section]) -> Table:
    """One row per finding; the sections are ruled off."""
    table = Table(title="thc doctor", title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("what it means", ratio=3, overflow="fold")
    table.add_column("command", ratio=2, overflow="fold")
    for section in sections:
        for finding in section.findings:
            state = Text(finding.state.value, "bold red" if finding.fails else _STYLES[finding.state])
            table.add_row(finding.check, state, escape(finding.meaning), escape(finding.command))
        table.add_section()
    return table


def as_json(sections: Sequence[Section]) -> dict[str, Any]:
    """{"ok": bool, "findings": [...]} with the names of the table's columns."""
    findings = [
        {
            "section": section.title,
            "check": finding.check,
            "state": finding.state.value,
            "meaning": finding.meaning,
            "command": finding.command,
            "fails": finding.fails,
        }
        for section in sections
        for finding in section.findings
    ]
    return {"ok": not any(finding["fails"] for finding in findings), "findings": findings}


def summary(sections: Sequence[Section]) -> str:
    """The last line: what must be mended, if anything."""
    failing = [finding.check for section in sections for finding in section.findings if finding.fails]
    if failing:
        return f"To be mended: {', '.join(failing)}."
    return "What byteps_thc needs works. Optional parts are needed only for what their lines say."
