"""What the documents show, and every error, can be imported from byteps_thc or a plug-in's module."""

from __future__ import annotations

import builtins
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from markdown_snippets import PAGES

import byteps_thc
from byteps_thc import ThcError

ROOT = Path(__file__).parents[2]
MODULES = ("ddp", "fsdp", "torch", "checkpoint")
FRONT_ENDS = ["byteps_thc", *(f"byteps_thc.{name}" for name in MODULES)]
#: torch's, and others', and what the examples for frameworks define
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
    """But for those of the thc command."""
    for info in pkgutil.walk_packages(byteps_thc.__path__, "byteps_thc."):
        # lib*: shared libraries, no modules
        if "._cli" not in info.name and not info.name.startswith("byteps_thc._native.lib"):
            importlib.import_module(info.name)
    pending, errors = [ThcError], set()
    while pending:
        error = pending.pop()
        pending += error.__subclasses__()
        errors |= {error} if re.match(r"byteps_thc\.(?!_cli)", error.__module__) else set()
    assert len(errors) > 5
    assert {error.__name__ for error in errors} <= {*byteps_thc.__all__}
    assert all(getattr(byteps_thc, error.__name__) is error for error in errors)
