#!/usr/bin/env python3
"""List all settings of the product with their places, one a line, and count them: python evaluation/settings.py

Fields of models and dataclasses, keywords of public functions and constructors, options of `thc` and thc-ps, words of
its --faults, and THC_* variables. An inherited field counts once, as does a keyword that several functions have. lab/
and evaluation/ are no product.
"""

import dataclasses
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import typer
from pydantic import BaseModel

from byteps_thc._base.environment import NAMES
from byteps_thc._cli.cli import app
from byteps_thc._scheme.decoding.settings import RankCodes

_OPTIONS = Path(__file__).parents[1] / "ps_software/options.cc"
_PUBLIC = ("", ".checkpoint", ".ddp", ".fsdp", ".torch")
_DESCRIPTIONS = ("thc_switch.description", "thc_switch.upstream_description")
#: Classes that users read, and do not make.
_RESULTS = ("CompressionState", "CompressionStats", "FsdpCompression", "LookupTable", "Partition", "ResolvedCodes")


def fields_of(kind: type) -> list[str]:
    """Return the fields that a model or dataclass adds to its bases'."""
    inherited = {name for base in kind.__mro__[1:] for name in getattr(base, "__annotations__", {})}
    fields = kind.model_fields if issubclass(kind, BaseModel) else [f.name for f in dataclasses.fields(kind) if f.init]
    return [name for name in fields if name not in inherited]


def keywords_of(target: object) -> list[str]:
    """Return the arguments with a default of a function, or of a class's constructor."""
    arguments = inspect.signature(target).parameters.values()  # type: ignore[arg-type]
    return [each.name for each in arguments if each.default is not each.empty]


def python_settings() -> Iterator[tuple[str, str]]:
    """Yield (setting, place) of users' imports, and of the descriptions of switches."""
    modules = [importlib.import_module(f"byteps_thc{name}") for name in _PUBLIC]
    names = [getattr(module, name) for module in modules for name in module.__all__ if name not in _RESULTS]
    descriptions = [each for name in _DESCRIPTIONS for each in vars(importlib.import_module(name)).values()]
    models = [each for each in descriptions if inspect.isclass(each) and each.__module__ in _DESCRIPTIONS]
    # Keywords of front ends are fields of RankCodes.
    for target in dict.fromkeys([*names, RankCodes, *models]):
        if not callable(target) or (inspect.isclass(target) and issubclass(target, BaseException | dict)):
            continue
        for kind in target.__mro__ if inspect.isclass(target) else ():
            if dataclasses.is_dataclass(kind) or (issubclass(kind, BaseModel) and "thc" in kind.__module__):
                yield from ((f"{kind.__name__}.{field}", kind.__module__) for field in fields_of(kind))
        if not (inspect.isclass(target) and (dataclasses.is_dataclass(target) or issubclass(target, BaseModel))):
            yield from ((f"{keyword}=", target.__name__) for keyword in keywords_of(target))


def command_settings() -> Iterator[tuple[str, str]]:
    """Yield (option, command) of `thc`, without the commands of lab/."""
    pending = [("thc", typer.main.get_command(app))]
    while pending:
        name, command = pending.pop()
        options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
        yield from ((f"{name} {option.opts[0]}", "command line") for option in options)
        context = command.make_context(name, [], resilient_parsing=True)
        for child in command.list_commands(context) if hasattr(command, "list_commands") else ():
            found = command.get_command(context, child)  # type: ignore[attr-defined]
            if not (getattr(found.callback, "__module__", "") or "").startswith("thc_lab"):
                pending.append((f"{name} {child}", found))


def main() -> None:
    """Print the settings and their number."""
    places: dict[str, list[str]] = defaultdict(list)
    text = _OPTIONS.read_text(encoding="utf-8")
    options = re.findall(r'"(--[a-z][a-z-]+)"', text) + [
        f"--faults {word}=" for word in re.findall(r'name == "([a-z-]+)"', text)
    ]
    ends = [(f"thc-ps {option}", "ps_software/options.cc") for option in options]
    for setting, place in (
        *python_settings(),
        *command_settings(),
        *ends,
        *((f"THC_{n}", "environment") for n in NAMES),
    ):
        if place not in places[setting]:
            places[setting].append(place)
    for setting in sorted(places):
        print(f"{setting}: {', '.join(places[setting])}")
    print(f"{len(places)} settings")


if __name__ == "__main__":
    main()
