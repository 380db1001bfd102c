"""Commands that errors, `thc doctor` and pages suggest: they work from a clone, or beside a wheel. No index has us."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("byteps_thc", "lab", "p4", "docs", "scripts", "ps_software", "cmake", "tests", "worker_dpdk")
SUFFIXES = {".py", ".md", ".cmake", ".txt", ".cc", ".sh"}


def commands() -> Iterator[tuple[str, str]]:
    """File and what follows `pip install` there."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "Makefile"]
    for folder in FOLDERS:
        files += (path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)
    for path in files:
        if path != Path(__file__):
            for command in re.findall(r"pip install ([^\n`]*)", path.read_text(encoding="utf-8")):
                yield str(path.relative_to(ROOT)), command


def test_no_command_names_a_package_that_no_index_has() -> None:
    suggested = list(commands())
    assert len(suggested) > 20
    assert [where for where in suggested if re.match(r"(-\S+ )*['\"]?byteps.thc\b", where[1])] == []


def test_versions_are_those_of_the_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lab = tomllib.loads((ROOT / "lab/pyproject.toml").read_text())["project"]["dependencies"]
    extras = [*project["project"]["optional-dependencies"].values(), lab]
    known = {requirement for extra in extras for requirement in extra} | set(project["build-system"]["requires"])
    suggested = {each for _, command in commands() for each in re.findall(r"'([a-z0-9-]+>=[0-9.]+)'", command)}
    assert {"torch>=2.9", "triton>=3.6", "typer>=0.12"} <= suggested <= known
