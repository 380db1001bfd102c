"""Settings in an environment variable, as THC_CONFIG has them for a ThcConfig: the same text for every process."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from byteps_thc.errors import ConfigurationError
from byteps_thc.settings import similar_to, warn_once

VARIABLE = "THC_CONFIG"


def settings_from_environment(
    variable: str = VARIABLE, example: str = "bits=4,granularity=30,p=1/32"
) -> dict[str, Any]:
    """Return what an environment variable says, by setting; nothing when it is not set.

    It is like `example`, or the path of a TOML file with such settings, which ends in .toml. Raises ConfigurationError
    when it is neither; names and values are checked by the caller.
    """
    text = os.environ.get(variable, "").strip()
    try:
        return tomllib.loads(Path(text).read_text(encoding="utf-8")) if text.endswith(".toml") else _parse(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{variable}={text!r}: {error}; write {variable}={example} or the path of a TOML file"
        ) from error


def thc_settings(names: Collection[str]) -> dict[str, Any]:
    """Return what THC_CONFIG says; ConfigurationError for a setting that is none of `names`, those of ThcConfig."""
    settings = settings_from_environment()
    for name in settings:
        if name not in names:
            raise ConfigurationError(f"{VARIABLE}: {name}: there is no such setting{similar_to(name, names)}")
    return settings


def say_unused(settings: Mapping[str, Any], used: Mapping[str, Any], instead: str) -> None:
    """Warn once of what THC_CONFIG says (`settings`) and nobody uses. instead: what is used, in words.

    Of several ranks, which mostly have the same variable, the first one does.
    """
    unused = {name: value for name, value in settings.items() if name not in used or used[name] != value}
    if unused and os.environ.get("RANK", "0") == "0":
        text = ", ".join(f"{name}={value}" for name, value in unused.items())
        warn_once(f"{VARIABLE}: not used: {text}; the program gives {instead}, which goes first")


def _parse(text: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, separator, value = (part.strip() for part in item.partition("="))
        if not separator or not name or not value:
            raise ValueError(f"{item!r} is not setting=value")
        if name in settings:
            raise ValueError(f"{name} is there twice")
        settings[name] = _value(value)
    return settings


def _value(text: str) -> int | float | bool | str | None:
    """A number, a fraction, true, false or none; anything else is a word such as auto."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)
