"""Imports run one way: without circles, and never from the product to lab, evaluation or tests.

Imports for type checkers count.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from imported_names import imported

ROOT = Path(__file__).parents[2]
#: Folders of packages, as far as this checkout has them: product, lab, evaluation.
FOLDERS = [ROOT / "byteps_thc", ROOT / "p4/thc_switch", ROOT / "lab", ROOT / "evaluation"]

Graph = Mapping[str, set[str]]


def packages(folder: Path) -> list[Path]:
    """Return the outermost packages in a folder."""
    if (folder / "__init__.py").exists() or not folder.is_dir():
        return [folder] if folder.is_dir() else []
    return [package for inner in sorted(folder.iterdir()) for package in packages(inner)]


def modules() -> dict[str, Path]:
    """Return every module of the packages by its name."""
    found = {}
    for package in (package for folder in FOLDERS for package in packages(folder)):
        for file in package.rglob("*.py"):
            name = ".".join(file.relative_to(package.parent).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = file
    return found


def module_graph(known: Mapping[str, Path]) -> Graph:
    """Return the modules that each module imports; compiled ones, which import none, as their package."""

    def home(name: str) -> str:
        while name and name not in known:
            name = name.rpartition(".")[0]
        return name

    graph = {}
    for name, file in known.items():
        graph[name] = {home(each) for each in imported(file, name)} - {"", name}
    return graph


def package_graph(graph: Graph) -> Graph:
    """Return the graph of outermost packages, and of the parts of byteps_thc._scheme."""
    merged: dict[str, set[str]] = {}
    for name, others in graph.items():
        own = outermost(name)
        merged.setdefault(own, set()).update({outermost(other) for other in others} - {own})
    return merged


def outermost(name: str) -> str:
    names = name.split(".")
    if names[0] not in ("byteps_thc", "thc_switch"):
        return names[0]
    return ".".join(names[: 3 if names[1:2] == ["_scheme"] else 2])


def shortest_circle(graph: Graph) -> list[str]:
    """Return the names on a shortest circle, the first one again at the end; empty without any."""
    circles = [circle for name in graph if (circle := _way_back(graph, name))]
    return min(circles, key=len, default=[])


def _way_back(graph: Graph, start: str) -> list[str]:
    ways = deque([[start]])
    seen: set[str] = set()
    while ways:
        way = ways.popleft()
        for name in sorted(graph.get(way[-1], ())):
            if name == start:
                return [*way, start]
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []


@pytest.mark.parametrize("level", [lambda graph: graph, package_graph], ids=["modules", "packages"])
def test_no_circle(level: Callable[[Graph], Graph]) -> None:
    graph = module_graph(modules())
    assert "byteps_thc._base.errors" in graph["byteps_thc._base.settings"]
    assert shortest_circle(level(graph)) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    """By its shortest way, through imports for type checkers, relative ones and those within functions."""
    texts = {
        "pack.near": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.far import name\n",
        "pack.far": "def late():\n    from . import near, other\n",
        "pack.other": "import pack.near.attribute\n",
        "pack.alone": "import pack.near\n",
    }
    files = {name: tmp_path / f"{name}.py" for name in texts}
    for name, text in texts.items():
        files[name].write_text(text, encoding="utf-8")
    assert shortest_circle(module_graph(files)) == ["pack.near", "pack.far", "pack.near"]
    assert shortest_circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []


PRODUCT = ("byteps_thc", "worker_dpdk", "ps_software", "p4/thc_switch", "p4/thc_p4_model/src", "scripts")
#: Folders that are on the path of programs outside of the product, or are packages there.
OUTSIDE = ("lab", "evaluation", "tests/lib", "p4/thc_p4_model/tests/lib")


def modules_in(folder: str) -> set[str]:
    """Names by which a program imports files in a folder of its path."""
    places = (ROOT / folder).glob("*")
    return {place.stem for place in places if place.suffix == ".py" or (place.is_dir() and any(place.rglob("*.py")))}


@cache
def imported_by(file: Path) -> frozenset[str]:
    """Packages that a Python file imports, under TYPE_CHECKING and in functions, too; "" for relative imports."""
    return frozenset(name.partition(".")[0] for name in imported(file, file.stem))


def python_files(folder: str) -> Iterator[Path]:
    return (ROOT / folder).rglob("*.py")


@pytest.mark.parametrize("folder", PRODUCT)
def test_the_product_imports_neither_lab_nor_evaluation_nor_tests(folder: str) -> None:
    outside = {"lab", "thc_lab", "evaluation", "tests", *(name for place in OUTSIDE for name in modules_in(place))}
    assert {"reference", "averages"} < outside
    wrong = {
        str(file.relative_to(ROOT)): found for file in python_files(folder) if (found := imported_by(file) & outside)
    }
    assert wrong == {}


@pytest.mark.parametrize("folder", ["lab", "evaluation"])
def test_lab_and_evaluation_import_no_tests(folder: str) -> None:
    tests = modules_in("tests/lib")
    assert [str(file) for file in python_files(folder) if imported_by(file) & tests] == []


@pytest.mark.parametrize("folder", PRODUCT)
def test_sources_in_cpp_include_nothing_of_the_tests(folder: str) -> None:
    sources = [file for suffix in ("*.cc", "*.h") for file in (ROOT / folder).rglob(suffix)]
    headers = {str(file.relative_to(ROOT / "tests")) for file in (ROOT / "tests").rglob("*.h")}
    for file in sources:
        included = set(re.findall(r'^#include "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE))
        assert not included & headers, file


def test_only_its_own_tests_import_evaluation() -> None:
    """Other tests may run its programs, as benchmarks; they import none of its modules."""
    evaluation = modules_in("evaluation")
    assert {"averages", "claims", "pages"} <= evaluation
    wrong = []
    for file in [*python_files("tests"), *python_files("lab")]:
        here = {place.stem for place in file.parent.iterdir()}  # programs import files beside them
        if ROOT / "tests/evaluation" not in file.parents and imported_by(file) & evaluation - here:
            wrong.append(str(file.relative_to(ROOT)))
    assert wrong == []
