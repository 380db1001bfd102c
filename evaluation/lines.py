#!/usr/bin/env python3
"""Count the lines of the product and its surroundings, Protocol classes and entries: python evaluation/lines.py

Python, C++, P4, shell and CMake that git knows. tests/, lab/, evaluation/ and the P4 model are no product.
"""

import re
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SUFFIXES = {".py", ".cc", ".h", ".p4", ".sh", ".pyi", ".cmake"}
_APART = ("tests", "lab", "evaluation", "p4/thc_p4_model")


def tracked() -> list[Path]:
    """Return the files that git knows, relative to ROOT."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in listed.split("\0") if name]


def sizes() -> dict[str, int]:
    """Return all numbers by name."""
    count = Counter[str]()
    protocols = 0
    entries = set[str]()
    for file in tracked():
        if file.parts[0] == "byteps_thc":
            entries.add(file.parts[1])
        if file.suffix not in _SUFFIXES and file.name != "CMakeLists.txt":
            continue
        text = (ROOT / file).read_text(encoding="utf-8")
        place = next((place for place in _APART if file.is_relative_to(place)), "product")
        count[place] += text.count("\n")
        if file.parts[0] == "byteps_thc":
            count["byteps_thc"] += text.count("\n")
        if file.suffix == ".py" and (file.parts[0] == "byteps_thc" or file.is_relative_to("p4/thc_switch")):
            protocols += len(re.findall(r"^class \w+\(.*\bProtocol\b", text, re.MULTILINE))
    return {**count, "Protocols": protocols, "entries of byteps_thc": len(entries)}


if __name__ == "__main__":
    for name, number in sizes().items():
        print(f"{name}: {number}")
