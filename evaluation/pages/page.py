"""evaluation/claims.md and README's part of it, from what was measured. Text around the marked parts is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from pages.claim import Check, Claim
from pages.plots import draw
from pages.record import Record

PAGE, README = Path("evaluation/claims.md"), Path("README.md")
#: The table of which README shows some columns, under other headings.
README_TABLE = "Time of a step"
README_COLUMNS = {
    "each worker's link": "link",
    "fp32 [ms]": "fp32",
    "bf16 [ms]": "bf16",
    "PowerSGD, rank 4 [ms]": "PowerSGD rank 4",
    "THC, default [ms]": "THC",
    "bf16 / THC": "THC over bf16",
}
SUMMARY = ["claim", "check", "expected", "got", ""]
MOST_COLUMNS = 6

Measured = Sequence[tuple[Claim, Record]]


def write(root: Path, measured: Measured) -> None:
    """Rewrite both documents, and the plots beside the page."""
    for claim, record in measured:
        for plot in claim.plots_of(record.result):
            draw(plot, root / PAGE.parent / "figures")
    parts = {"summary": summary(measured), "claims": sections(measured), "stand-ins": stand_ins(measured)}
    for name, lines in parts.items():
        replace(root / PAGE, name, lines)
    shown = [table for _, record in measured for table in record.result.tables if table.title.startswith(README_TABLE)]
    if shown:
        replace(root / README, "step time", markdown(chosen(shown[0].cells, README_COLUMNS)))


def replace(document: Path, name: str, lines: Sequence[str]) -> None:
    """Put lines between the markers of a part. Raises ValueError for a document without them."""
    begin, end = f"<!-- {name}: make evaluate -->", f"<!-- end of {name} -->"
    before, first, rest = document.read_text().partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"{document} has no {begin} ... {end}")
    document.write_text("\n".join([before + begin, "", *lines, "", end + after]))


def summary(measured: Measured) -> list[str]:
    """A line for each check."""
    cells = [SUMMARY]
    for claim, record in measured:
        link = f"[{claim.title}](#{anchor(claim.title)})"
        for i, check in enumerate(record.result.checks):
            cells.append([link if i == 0 else "", check.what, check.expected, check.got, verdict(check)])
    return markdown(cells)


def sections(measured: Measured) -> list[str]:
    """Figures of each claim."""
    lines: list[str] = []
    for claim, record in measured:
        lines += [f"## {claim.title}", "", f"`{claim.command}`, {record.minutes:g} minutes. {record.machine}", ""]
        lines += [f"{source(claim.figure)}: {claim.paper}.", ""]
        for plot in claim.plots_of(record.result):
            lines += [f"![{plot.title}: {plot.y} by {plot.x}](figures/{plot.name}.svg)", ""]
        if reasons := [f"- {check.what}: {check.why}" for check in record.result.checks if check.why]:
            lines += ["Reasons for the checks that were not met:", "", *reasons, ""]
        for table in record.result.tables:
            lines += [f"{table.title}:", ""]
            for part in narrow(table.cells):
                lines += [*markdown(part), ""]
    return lines[:-1]


def stand_ins(measured: Measured) -> list[str]:
    """What could not be had, claim by claim."""
    return [f"- {claim.title}: {claim.stand_in}" for claim, _ in measured]


def chosen(cells: list[list[str]], columns: Mapping[str, str]) -> list[list[str]]:
    """Return columns of a table, named by their headings there, under the headings that they get."""
    head, *rows = cells
    at = [head.index(column) for column in columns]
    return [[*columns.values()], *([row[i] for i in at] for row in rows)]


def source(figure: str) -> str:
    """Name the place in the paper."""
    return "Paper" if figure.startswith("none") else f"Paper, {'figure ' if figure[0].isdigit() else ''}{figure}"


def narrow(cells: list[list[str]]) -> list[list[list[str]]]:
    """Return tables of MOST_COLUMNS at most: transposed if that is enough, else parts that begin with the same columns.

    These columns are the first one and those behind it without which two rows are alike.
    """
    head, *rows = cells
    if len(head) <= MOST_COLUMNS:
        return [cells]
    if len(cells) < MOST_COLUMNS:
        return [[list(column) for column in zip(*cells, strict=True)]]
    keys = next(count for count in range(1, len(head)) if len({tuple(row[:count]) for row in rows}) == len(rows))
    rest = len(head) - keys
    width = math.ceil(rest / math.ceil(rest / (MOST_COLUMNS - keys)))
    return [[row[:keys] + row[at : at + width] for row in cells] for at in range(keys, len(head), width)]


def verdict(check: Check) -> str:
    return "met" if check.met else "**not met**"


def anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def markdown(cells: Sequence[Sequence[str]]) -> list[str]:
    """A table; cells[0] is the heading."""
    head, *rest = cells
    return [line(head), "|" + " --- |" * len(head), *(line(row) for row in rest)]


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
