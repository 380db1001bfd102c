"""The command line of the scripts that generate files: writes them, or with --check compares them."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(outputs: Callable[[], Mapping[Path, str]], doc: str | None, present: Iterable[Path] = ()) -> None:
    """Write the files that differ, and end the process. doc: the script's. present: files, none but generated ones."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when a file differs")
    check = parser.parse_args().check
    files = outputs()
    stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    wrong = [f"{path.relative_to(ROOT)} is not one of the generated files: delete it" for path in {*present} - {*files}]
    if check:
        wrong += [f"{path.relative_to(ROOT)} is out of date: run scripts/{parser.prog}" for path in stale]
    for path in [] if check else stale:
        path.write_text(files[path], encoding="utf-8")
    sys.exit("\n".join(wrong) or None)
