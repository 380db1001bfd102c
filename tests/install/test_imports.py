"""Imports go one way: no circle of modules, no ring of packages. Imports for type checkers alone count."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
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
    """Return every module of these packages by its name."""
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
    """Return the graph of outermost packages, and of what is in byteps_thc._scheme."""
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
    assert "byteps_thc._scheme.errors" in graph["byteps_thc._scheme.settings"]
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
