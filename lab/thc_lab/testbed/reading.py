"""Reads the description of a testbed: a TOML file that says everything about a training, its network and its hosts.

The whole description is checked, so that its plan can be run. Errors name the path of the key, and the change to make.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from byteps_thc._base.errors import ConfigurationError
from thc_lab.testbed.description import Testbed
from thc_lab.testbed.description_checks import check

#: Values of this section may be secrets, and are in no message.
_SECRETS = "training.environment"
_Where = tuple[int | str, ...]


def load(path: Path) -> Testbed:
    """Read a TOML file. ConfigurationError names it, the key and the change to make."""
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} is not a description of a testbed: {error}") from error
    _resolve_folder(fields, path.resolve().parent)
    try:
        return read(fields)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def read(fields: Mapping[str, Any]) -> Testbed:
    """Make a testbed of a file's contents. ConfigurationError names the key and the change to make."""
    try:
        testbed = Testbed(**fields)
    except ValidationError as error:
        raise ConfigurationError(_explain(error, Testbed)) from error
    try:
        check(testbed)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    return testbed


def _resolve_folder(fields: dict[str, Any], beside: Path) -> None:
    """The training's folder in namespaces is the description's, so that it may name the script beside it."""
    training = fields.get("training")
    if fields.get("reach") == "namespaces" and isinstance(training, dict):
        training["folder"] = str(beside / str(training.get("folder", "")))


def _explain(error: ValidationError, root: type[BaseModel]) -> str:
    """One line per mistake in a description whose outermost section is `root`."""
    return "; ".join(dict.fromkeys(_line(detail, root) for detail in error.errors()))


def _line(detail: ErrorDetails, root: type[BaseModel]) -> str:
    path, names = _follow(detail["loc"], root)
    message = re.sub(r"^Input should ", "must ", detail["msg"].removeprefix("Value error, "))
    match detail["type"]:
        case "extra_forbidden":
            name = str(detail["loc"][-1])
            return f"{path}: there is no such key{_similar(name, names)}"
        case "missing":
            return f"{path}: is missing"
        case "union_tag_not_found":
            return f"{path}.kind: is missing"
        case "union_tag_invalid":
            return f"{path}.kind: must be one of {detail['ctx']['expected_tags']}"
        case "value_error":
            # Messages about a section of another package begin with that section's key.
            own = path and re.match(r"[a-z_][\w.]*: ", message)
            return f"{path}.{message}" if own else f"{path}: {message}".removeprefix(": ")
        case _ if path.startswith(_SECRETS):
            return f"{path}: {message[:1].lower()}{message[1:]}"
        case _:
            return f"{path}: {message[:1].lower()}{message[1:]} (given: {detail['input']!r})"


def _similar(name: str, names: list[str]) -> str:
    if near := difflib.get_close_matches(name, names, n=1):
        return f", did you mean {near[0]}?"
    return f"; there are {', '.join(names)}" if names else ""


def _follow(where: _Where, root: type[BaseModel]) -> tuple[str, list[str]]:
    """The path of a key as it is written, and the names that its section has.

    If a section may be of several kinds, pydantic puts the kind behind its name.
    """
    section: Any = root
    choices: list[Any] = []
    written: list[str] = []
    names: list[str] = []
    for part in where:
        if len(choices) > 1:
            section = next(model for model in choices if part in get_args(model.model_fields["kind"].annotation))
            choices = []
            continue
        written.append(str(part))
        names = _names(section)
        if isinstance(part, str) and part in _names(section):
            choices = list(_sections_in(_annotation(section, part)))
            section = choices[0] if len(choices) == 1 else None
    return ".".join(written), names


def _names(section: Any) -> list[str]:
    return list(section.model_fields) if section is not None else []


def _annotation(section: Any, name: str) -> Any:
    return section.model_fields[name].annotation if hasattr(section, "model_fields") else None


def _sections_in(annotation: Any) -> Iterator[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections_in(argument)
