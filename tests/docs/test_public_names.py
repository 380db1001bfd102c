"""Public names: pages show them, type checkers know them, and an import loads no more than its own module."""

import ast
import builtins
import importlib
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Literal, get_origin

import pytest
from markdown_snippets import PAGES

import byteps_thc
from byteps_thc import ThcError

ROOT = Path(__file__).parents[2]
MODULES = ("ddp", "fsdp", "torch", "checkpoint")
FRONT_ENDS = ["byteps_thc", *(f"byteps_thc.{name}" for name in MODULES)]
#: Names of torch and others, and definitions in the examples for frameworks
FOREIGN = {
    "AveragedModel",
    "Compression",
    "DDPStrategy",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "Embedding",
    "GradScaler",
    "ModelWrapper",
    "PowerSGDState",
    "SummaryWriter",
    "ThcProcessGroup",
    "Trainer",
}


def shown(document: Path) -> set[str]:
    """Names of classes that are called, and of errors, in code of a document."""
    text = document.read_text(encoding="utf-8")
    code = re.findall(r"```python\n.*?```|`[^`\n]+`", re.sub(r"```diff.*?```", "", text, flags=re.DOTALL), re.DOTALL)
    names = r"(?<![.\w])(?:[A-Z][a-z]+\w*(?=\()|[A-Z]\w+Error)\b"
    return {name for part in code for name in re.findall(names, part)}


@pytest.mark.parametrize("document", PAGES, ids=lambda path: path.name)
def test_names_in_a_document_are_public(document: Path) -> None:
    public = {name for module in FRONT_ENDS for name in importlib.import_module(module).__all__}
    assert shown(document) - public - FOREIGN <= set(dir(builtins))


def test_the_reference_has_all_modules() -> None:
    assert sorted(path.stem for path in (ROOT / "docs/api").glob("*.md")) == sorted(FRONT_ENDS)


@pytest.mark.parametrize("module", FRONT_ENDS)
def test_all_names_exist(module: str) -> None:
    names = importlib.import_module(module).__all__
    assert names == sorted(names)
    assert not [name for name in names if not hasattr(importlib.import_module(module), name)]


def test_every_error_is_public() -> None:
    """Without the thc command's modules."""
    for info in pkgutil.walk_packages(byteps_thc.__path__, "byteps_thc."):
        # lib*: shared libraries, no modules
        if "._cli" not in info.name and not info.name.startswith("byteps_thc._native.lib"):
            importlib.import_module(info.name)
    pending, errors = [ThcError], set()
    while pending:
        error = pending.pop()
        pending += error.__subclasses__()
        errors |= {error} if re.match(r"byteps_thc(?!\._cli)", error.__module__) else set()
    assert len(errors) > 5
    assert {error.__name__ for error in errors} <= {*byteps_thc.__all__}
    assert all(getattr(byteps_thc, error.__name__) is error for error in errors)
    assert {error.__module__ for error in errors} == {"byteps_thc"}, "tracebacks name the public module"


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
    assert "byteps_thc._base.errors" in modules
    assert not {"byteps_thc._native._core", "byteps_thc._native._comm", "numpy", "torch"} & set(modules)


def test_the_version_is_that_of_the_distribution() -> None:
    assert byteps_thc.__version__ == version("byteps_thc")
    assert "__version__" in dir(byteps_thc)
