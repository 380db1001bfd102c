"""The API reference builds without warnings, and everything in it is documented."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "scripts/docs.py"


def reference_modules() -> list[str]:
    """MODULES of scripts/docs.py."""
    for node in ast.parse(PROGRAM.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "MODULES":
            modules: list[str] = ast.literal_eval(node.value)
            return modules
    raise AssertionError(f"{PROGRAM} has no MODULES")


def public_objects(module: ModuleType) -> Iterator[tuple[str, object]]:
    """The functions and classes that a module offers, and the functions and properties of those classes."""
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
    ]
    for name in names:
        value = getattr(module, name)
        if name.startswith("_") or not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        yield f"{module.__name__}.{name}", value
        for member, attribute in vars(value).items() if inspect.isclass(value) else ():
            if not member.startswith("_") and (inspect.isfunction(attribute) or isinstance(attribute, property)):
                yield f"{module.__name__}.{name}.{member}", attribute


def test_reference_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("pdoc")
    subprocess.run([sys.executable, "-P", str(PROGRAM), "--output", str(tmp_path)], timeout=100, check=True)
    for module in reference_modules():
        page = tmp_path / f"{module.replace('.', '/')}.html"
        assert page.exists(), module
    assert "thc_hook" in (tmp_path / "byteps_thc/ddp.html").read_text(encoding="utf-8")


def test_every_public_name_has_a_docstring() -> None:
    undocumented = [
        name
        for module in reference_modules()
        for name, value in public_objects(importlib.import_module(module))
        if not inspect.getdoc(value)
    ]
    assert not undocumented
