"""The clone's three distributions, and suggested commands that install them."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import files, packages_distributions, requires
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]


def packages_in(names: list[str]) -> set[str]:
    """The import packages among a wheel's files."""
    return {name.partition("/")[0] for name in names if name.endswith(".py")}


def built(tmp_path: Path, folder: Path, code: str) -> list[str]:
    """Names of the files in the wheel that a build back end makes of a folder."""
    subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], cwd=folder, timeout=100, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    return ZipFile(wheel).namelist()


def test_byteps_thc_s_wheel_is_without_the_p4_model(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core")
    # All but compiled files.
    code = "import sys; from scikit_build_core.build import build_wheel as b; b(sys.argv[1], {'wheel.cmake': 'false'})"
    names = built(tmp_path, ROOT, code)
    assert packages_in(names) == {"byteps_thc", "thc_switch"}
    assert not [name for name in names if "p4_model" in name]


def test_the_p4_model_s_wheel_has_all_that_it_reads(tmp_path: Path) -> None:
    pytest.importorskip("flit_core")
    code = "import sys; from flit_core.buildapi import build_wheel; build_wheel(sys.argv[1])"
    names = built(tmp_path, ROOT / "p4/thc_p4_model", code)
    assert packages_in(names) == {"thc_p4_model"}
    source = ROOT / "p4/thc_p4_model/src"
    read = {".py", ".p4", ".lark", ".typed"}
    assert {name for name in names if Path(name).suffix in read} == {
        str(path.relative_to(source)) for path in source.rglob("*") if path.suffix in read
    }


def test_what_is_installed_are_three_distributions() -> None:
    owners = packages_distributions()
    assert owners["thc_p4_model"] == ["thc_p4_model"]
    assert owners["thc_lab"] == ["thc_lab"]
    assert set(owners["byteps_thc"]) == set(owners["thc_switch"]) == {"byteps_thc"}
    assert not [path for path in files("byteps_thc") or [] if "p4_model" in str(path)]


def test_a_training_needs_no_command_line() -> None:
    needed = [text for text in requires("byteps_thc") or [] if "extra ==" not in text]
    assert sorted(text.partition(">")[0] for text in needed) == ["numpy", "pydantic", "typing-extensions"]


def test_the_p4_model_asks_for_nothing_of_byteps_thc() -> None:
    needed = [text for text in requires("thc_p4_model") or [] if "extra ==" not in text]
    assert sorted(text.partition(">")[0] for text in needed) == ["lark", "rich", "typer"]


FOLDERS = ("byteps_thc", "lab", "p4", "docs", "scripts", "ps_software", "cmake", "tests", "worker_dpdk")
SUFFIXES = {".py", ".md", ".cmake", ".txt", ".cc", ".sh"}


def commands() -> Iterator[tuple[str, str]]:
    """File and arguments of `pip install` there."""
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
