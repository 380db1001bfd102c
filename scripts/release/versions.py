"""Say the version that CMakeLists.txt has, if the tag and CHANGELOG.md agree with it.

Usage: python scripts/release/versions.py [--tag vX.Y.Z]... [--draft]
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", action="append", default=[], help="of the commit that is released; may be given again")
    parser.add_argument("--draft", action="store_true", help="CHANGELOG.md need not have the version's heading yet")
    arguments = parser.parse_args()
    version = version_of((ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
    problems = [
        f"the tag is {tag!r}, and the version in CMakeLists.txt is {version}: its tag would be 'v{version}'"
        for tag in arguments.tag
        if tag != f"v{version}"
    ]
    if not arguments.draft:
        problems += problems_of_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    for problem in problems:
        print(f"release: {problem}", file=sys.stderr)
    print(version)
    return 1 if problems else 0


def version_of(cmake: str) -> str:
    found = re.search(r"project\(byteps_thc VERSION ([0-9.]+)", cmake)
    assert found is not None
    return found[1]


def problems_of_changelog(text: str, version: str) -> list[str]:
    """Return mistakes of the changelog. Its newest heading but Unreleased must have the version."""
    sections = re.findall(r"^## \[([^\]]+)\]([^\n]*)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    problems = []
    if sections and sections[0][0] == "Unreleased":
        if sections[0][2].strip():
            problems.append("CHANGELOG.md has entries below [Unreleased]: they belong below the version's heading")
        sections = sections[1:]
    newest, date, _ = sections[0] if sections else ("none", "", "")
    if newest != version or not re.fullmatch(r" - \d{4}-\d\d-\d\d", date):
        problems.append(
            f"CHANGELOG.md's newest heading should be '## [{version}] - YYYY-MM-DD', it is [{newest}]{date}: "
            "write this version and date there"
        )
    return problems


if __name__ == "__main__":
    sys.exit(main())
