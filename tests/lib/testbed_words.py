"""Every place of a testbed's description where a word can be, by walking its model; words that a shell would run."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from testbed_plans import DESCRIPTIONS

from thc_lab.testbed.description import Testbed

#: A program on PATH that leaves a mark; no description names it.
MARKER = "hit"
_TRICKS = (
    f";{MARKER};",
    f"$({MARKER})",
    f"`{MARKER}`",
    f"\n{MARKER}\n",
    f"&{MARKER}&",
    f"|{MARKER}",
    f"';{MARKER};'",
    f'";{MARKER};"',
    f"${{IFS}};{MARKER}",
    f"-x;{MARKER}",
    f"--x=$({MARKER})",
    f" $({MARKER}) #",
    f"a[$({MARKER})]",
    f"\\;{MARKER}",
    f"\rEND_OF_FILE\n{MARKER}\n",
    "..",
    "-",
)
#: As they are, and behind what a path or a name begins with.
PREFIXES = ("", "/x", "a")
PAYLOADS = tuple(prefix + trick for trick in _TRICKS for prefix in PREFIXES)
#: Fewer, for what takes its time.
SOME_PAYLOADS = tuple(PREFIXES[number % 3] + trick for number, trick in enumerate(_TRICKS))

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """A field of a section; part: "" for a value, "key" and "value" of a table, "first" and "last" of a list."""

    section: str
    field: str
    part: str = ""


def base(name: str) -> dict[str, Any]:
    """A description as TOML gives it, whose programs are on PATH, with the sections that it leaves to defaults."""
    fields = tomllib.loads((DESCRIPTIONS / f"{name}.toml").read_text(encoding="utf-8"))
    fields.pop("bin", None)
    fields["training"]["command"] = ["true"]
    fields["training"].setdefault("environment", {"OMP_NUM_THREADS": "2"})
    if name == "dpdk_switch":
        switch = fields["aggregator"]["switch"]
        switch["stations"] = [{"mac": "02:00:00:00:00:77", "port": 12}]
        switch["routes"] = [{"prefix": "10.9.0.0/16", "next_hop_mac": "02:00:00:00:00:77", "port": 12}]
        root = {"ip": "10.0.0.77", "mac": "02:00:00:00:00:78", "port": 13, "racks": "0-0,1-1", "rack": 0}
        fields["aggregator"]["further_jobs"][0] |= {"upstream": root, "thc": {"granularity": 38, "p": 0.015625}}
    return fields


BASES = ("dpdk_switch", "torchrun", "colocated", "racks")


def all_places(section: type[BaseModel] = Testbed, seen: set[type[BaseModel]] | None = None) -> set[tuple[str, str]]:
    """(section, field) of every field in which no section is, of all sections of the model."""
    seen = set() if seen is None else seen
    if section in seen:
        return set()
    seen.add(section)
    found: set[tuple[str, str]] = set()
    for name, field in section.model_fields.items():
        models = list(_models_in(field.annotation))
        if not models:
            found.add((section.__name__, name))
        for model in models:
            found |= all_places(model, seen)
    return found


def places(fields: dict[str, Any], section: type[BaseModel] = Testbed, at: Path = ()) -> Iterator[tuple[Place, Path]]:
    """Where a word can be in a description, and its keys: each field of each section that is there, or may be empty."""
    for name, field in section.model_fields.items():
        models = list(_models_in(field.annotation))
        if not models:
            for part in _parts(field.annotation):
                yield Place(section.__name__, name, part), (*at, name)
            continue
        value = fields.get(name, {} if not _is_list(field.annotation) and _needs_nothing(models) else None)
        for key, each in (
            [((), value)] if isinstance(value, dict) else [((n,), each) for n, each in enumerate(value or ())]
        ):
            yield from places(each, _chosen(models, each), (*at, name, *key))


def plant(fields: dict[str, Any], place: Place, keys: Path, word: str) -> dict[str, Any]:
    """The description with the word at that place."""
    changed = copy.deepcopy(fields)
    section: Any = changed
    for key in keys[:-1]:
        section = section.setdefault(key, {}) if isinstance(section, dict) else section[key]
    before = section.get(keys[-1])
    match place.part:
        case "key":
            section[keys[-1]] = {**(before or {}), word: "1"}
        case "value":
            section[keys[-1]] = dict.fromkeys(before or {"1": ""}, word)
        case "first":
            section[keys[-1]] = [word]
        case "last":
            section[keys[-1]] = [*(before or ()), word]
        case _:
            section[keys[-1]] = word
    return changed


def _parts(annotation: Any) -> tuple[str, ...]:
    origins = {get_origin(each) for each in (annotation, *get_args(annotation))}
    return ("key", "value") if dict in origins else ("first", "last") if tuple in origins else ("",)


def _is_list(annotation: Any) -> bool:
    return tuple in {get_origin(each) for each in (annotation, *get_args(annotation))}


def _needs_nothing(models: list[type[BaseModel]]) -> bool:
    return len(models) == 1 and not any(field.is_required() for field in models[0].model_fields.values())


def _chosen(models: list[type[BaseModel]], fields: dict[str, Any]) -> type[BaseModel]:
    """Of sections that are told apart by their kind."""
    if len(models) == 1:
        return models[0]
    return next(model for model in models if fields["kind"] in get_args(model.model_fields["kind"].annotation))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
