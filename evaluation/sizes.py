#!/usr/bin/env python3
"""Hold sizes of the tree (lines.py) and the number of settings (settings.py): they may only fall.

    evaluation/sizes.py --check     # compare with sizes.tsv (make lint)
    evaluation/sizes.py --write     # lower the values of sizes.tsv (make sizes)

No value of sizes.tsv may be above one that a commit before had.
"""

import re
import subprocess
import sys
from pathlib import Path

import lines

LIMITS = Path(__file__).with_name("sizes.tsv")
_ROW = r"([^\t\n]+)\t(\d+)$"


def counted() -> dict[str, int]:
    """Return the sizes of the tree by name."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("settings.py"))]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    settings = int(listed.splitlines()[-1].removesuffix(" settings"))
    return {**lines.sizes(), "settings": settings}


def read(text: str, start: str = "^") -> dict[str, int]:
    """Return the least value of each name in the rows of a text. start: a pattern in front of a row."""
    rows = [(name, int(number)) for name, number in re.findall(start + _ROW, text, re.MULTILINE)]
    return dict(sorted(rows, key=lambda row: -row[1]))


def committed(file: Path) -> dict[str, int]:
    """Return the least value that the history of a file has for each name."""
    command = ["git", "log", "--format=", "--patch", "--unified=0", "--", str(file)]
    patches = subprocess.run(command, cwd=file.parent, check=True, capture_output=True, text=True).stdout
    return read(patches, r"^\+")


def faults(now: dict[str, int], limits: dict[str, int], earlier: dict[str, int]) -> list[str]:
    """Return the sizes that have grown, in words.

    now: sizes of the tree
    limits: values of sizes.tsv
    earlier: the least values that it had
    """
    grown = [
        f"{name} is {now[name]}, at most {most}: remove as much as you add"
        for name, most in limits.items()
        if now[name] > most
    ]
    raised = [
        f"sizes.tsv allows {most} for {name}, and allowed {earlier[name]} before: restore its value"
        for name, most in limits.items()
        if most > earlier.get(name, most)
    ]
    removed = [f"sizes.tsv has no {name}: restore its row" for name in earlier.keys() - limits.keys()]
    return grown + raised + removed


def main(arguments: list[str]) -> int:
    """Check the sizes, or write them if asked, and return the exit status."""
    now, limits = counted(), read(LIMITS.read_text(encoding="utf-8"))
    found = faults(now, limits, committed(LIMITS))
    for fault in found:
        print(f"sizes: {fault}", file=sys.stderr)
    if found:
        return 1
    match arguments:
        case ["--check"]:
            return 0
        case ["--write"]:
            LIMITS.write_text("".join(f"{name}\t{now[name]}\n" for name in limits), encoding="utf-8")
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
