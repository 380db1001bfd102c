"""The names that byteps_thc offers: imported when they are asked for, and known to type checkers."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Literal, get_origin

import byteps_thc


def test_type_checkers_see_the_names_that_exist() -> None:
    tree = ast.parse(Path(byteps_thc.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {name.name for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert imported == set(byteps_thc.__all__)
    for name in byteps_thc.__all__:
        assert name in dir(byteps_thc)
        value = getattr(byteps_thc, name)
        assert get_origin(value) is Literal or value.__name__ == name


def test_import_loads_nothing_that_is_not_asked_for() -> None:
    code = "import byteps_thc, sys; byteps_thc.ThcError; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    modules = result.stdout.split()
    assert "byteps_thc._scheme.errors" in modules
    assert not {"byteps_thc._native._core", "byteps_thc._native._comm", "numpy", "torch"} & set(modules)


def test_the_version_is_that_of_the_distribution() -> None:
    assert byteps_thc.__version__ == version("byteps_thc")
    assert "__version__" in dir(byteps_thc)
