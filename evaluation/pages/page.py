"""evaluation/claims.md, and parts of README and docs/results.md, from the measured results.

Text around the marked parts is kept.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from pages.claim import Check, Claim
from pages.plots import draw
from pages.record import Record

PAGE, README, RESULTS = Path("evaluation/claims.md"), Path("README.md"), Path("docs/results.md")
DOCUMENTS = (PAGE, README, RESULTS)
#: Beginnings of the titles of the tables that README and RESULTS show.
README_TABLE, RESULTS_TABLE = "Time of a step", "Steps of a GPT"
#: README's columns: heading in the table -> heading in README.
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
    """Rewrite all documents, and the plots beside the page."""
    for claim, record in measured:
        for plot in claim.plots_of(record.result):
            draw(plot, root / PAGE.parent / "figures")
    parts = {"summary": summary(measured), "claims": sections(measured), "stand-ins": stand_ins(measured)}
    for name, lines in parts.items():
        replace(root / PAGE, name, lines)
    tables = [table for _, record in measured for table in record.result.tables]
    for table in tables:
        if table.title.startswith(README_TABLE):
            replace(root / README, "step time", markdown(columns(table.cells, README_COLUMNS)))
        if table.title.startswith(RESULTS_TABLE):
            replace(root / RESULTS, "step time", markdown(table.cells))


def columns(cells: Sequence[Sequence[str]], names: Mapping[str, str]) -> list[list[str]]:
    """Return some columns of a table, in the order of names: heading -> new heading."""
    head, *rest = cells
    places = [head.index(heading) for heading in names]
    return [list(names.values()), *([row[place] for place in places] for row in rest)]


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
            stale = f"; {record.note}" if record.note else ""
            cells.append([link if i == 0 else "", check.what, check.expected, check.got, verdict(check) + stale])
    return markdown(cells)


def sections(measured: Measured) -> list[str]:
    """Figures of each claim."""
    lines: list[str] = []
    for claim, record in measured:
        lines += [f"## {claim.title}", "", f"`{claim.command}`, {record.minutes:g} minutes. {record.machine}", ""]
        lines += [f"{source(claim.figure)}: {claim.paper}.", ""]
        lines += [record.note, ""] if record.note else []
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
    """The replaced experiments, claim by claim."""
    return [f"- {claim.title}: {claim.stand_in}" for claim, _ in measured]


def source(figure: str) -> str:
    """Name the place in the paper."""
    return "Paper" if figure.startswith("none") else f"Paper, {'figure ' if figure[0].isdigit() else ''}{figure}"


def narrow(cells: list[list[str]]) -> list[list[list[str]]]:
    """Return tables of MOST_COLUMNS at most: transposed if that is enough, else parts that begin with the same columns.

    The common columns are the first, and further ones until no two rows are alike.
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
    """GitHub's anchor of a heading."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def markdown(cells: Sequence[Sequence[str]]) -> list[str]:
    """A table; cells[0] is the heading."""
    head, *rest = cells
    return [line(head), "|" + " --- |" * len(head), *(line(row) for row in rest)]


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;').replace('; ', '<br>') for cell in cells)} |"
