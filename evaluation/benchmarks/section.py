"""A benchmark's section of evaluation/benchmarks.md: printed as Markdown, and stored as "page" by --json FILE."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def table(cells: Sequence[Sequence[str]], align: str = "l") -> list[str]:
    """Lines of a table. cells[0] is the heading. align: l or r for each column; further columns are r."""
    columns = align.ljust(len(cells[0]), "r")
    head, *rest = (f"| {' | '.join(line)} |" for line in cells)
    return [head, f"| {' | '.join({'l': '---', 'r': '---:'}[column] for column in columns)} |", *rest, ""]


def publish(lines: Sequence[str], path: Path | None, **data: Any) -> None:
    """Print the section; write it and the figures behind it to path."""
    print("\n".join(lines))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"page": lines, **data}, indent=1) + "\n")
