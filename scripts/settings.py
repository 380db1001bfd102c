#!/usr/bin/env python3
"""List all settings of the product, one a line with its place, and count them: python scripts/settings.py

Fields of models and dataclasses, keywords of public functions and constructors, options of `thc` and thc-ps, THC_* variables. An
inherited field counts once. lab/ and evaluation/ are no product.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import typer
from pydantic import BaseModel

ROOT = Path(__file__).parents[1]
PUBLIC = ("byteps_thc", *(f"byteps_thc.{name}" for name in ("baselines", "checkpoint", "ddp", "fsdp", "torch")))
#: Modules of descriptions in TOML files.
DESCRIPTIONS = ("thc_switch.description", "thc_switch.upstream_description")
_ARGUMENTS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def own_fields(kind: type) -> list[str]:
    """Return the fields that a model or dataclass adds to those of its bases."""
    names = list(kind.model_fields) if issubclass(kind, BaseModel) else [f.name for f in dataclasses.fields(kind) if f.init]
    inherited = {name for base in kind.__mro__[1:] for name in getattr(base, "__annotations__", {})}
    return [name for name in names if name not in inherited]


def keywords(target: object) -> list[str]:
    """Return the arguments of a function or constructor that have a default."""
    given = inspect.signature(target).parameters.values()  # type: ignore[arg-type]
    return [each.name for each in given if each.kind in _ARGUMENTS and each.default is not inspect.Parameter.empty]


def of_target(target: object) -> list[str]:
    """Return the settings of a public name."""
    if inspect.isclass(target) and (issubclass(target, BaseModel) or dataclasses.is_dataclass(target)):
        return own_fields(target)
    if inspect.isclass(target) and issubclass(target, BaseException | dict):
        return []
    return keywords(target) if inspect.isclass(target) or inspect.isfunction(target) else []


def of_modules() -> Iterator[tuple[str, str]]:
    """Yield (place, setting) of public names and descriptions, and of the classes in the project that they inherit."""
    targets: dict[int, object] = {}
    for name in PUBLIC:
        module = importlib.import_module(name)
        for target in (getattr(module, public) for public in module.__all__):
            for each in target.__mro__ if inspect.isclass(target) else [target]:
                if each is target or dataclasses.is_dataclass(each):
                    targets.setdefault(id(each), each)
    for name in DESCRIPTIONS:
        targets |= {id(each): each for each in _models(importlib.import_module(name))}
    for target in targets.values():
        for setting in of_target(target):
            yield f"{target.__module__}.{target.__qualname__}", setting  # type: ignore[attr-defined]


def _models(module: ModuleType) -> list[type]:
    return [
        each
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, BaseModel) and each.__module__ == module.__name__
    ]


def of_commands() -> Iterator[tuple[str, str]]:
    """Yield (command, option) of `thc`, without the commands of lab/."""
    from byteps_thc.tools.cli import app

    pending = [("thc", typer.main.get_command(app))]
    while pending:
        name, command = pending.pop()
        context = command.make_context(name, [], resilient_parsing=True)
        children = command.list_commands(context) if hasattr(command, "list_commands") else []
        for child in children:
            found = command.get_command(context, child)  # type: ignore[attr-defined]
            if not (getattr(found.callback, "__module__", "") or "").startswith("thc_lab"):
                pending.append((f"{name} {child}", found))
        for option in command.params:
            if option.param_type_name == "option" and option.name != "help":
                yield name, option.opts[0]


def of_thc_ps() -> Iterator[tuple[str, str]]:
    """Yield (file, option) of thc-ps."""
    file = "ps_software/options.cc"
    for option in dict.fromkeys(re.findall(r'"(--[a-z][a-z-]+)"', (ROOT / file).read_text(encoding="utf-8"))):
        yield file, option


def of_environment() -> Iterator[tuple[str, str]]:
    """Yield (module, variable)."""
    from byteps_thc.environment import NAMES

    for name in NAMES:
        yield "byteps_thc.environment", f"THC_{name}"


def main() -> None:
    """Print them, and their number."""
    found = sorted({*of_modules(), *of_commands(), *of_thc_ps(), *of_environment()})
    for place, setting in found:
        print(f"{place}: {setting}")
    print(f"{len(found)} settings")


if __name__ == "__main__":
    main()
