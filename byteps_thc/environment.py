"""THC_CONFIG: settings of a ThcConfig for programs that give none, the same text for every process of a job."""

from __future__ import annotations

import os
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

from byteps_thc.errors import ConfigurationError

VARIABLE = "THC_CONFIG"


def settings_from_environment() -> dict[str, Any]:
    """Return what $THC_CONFIG says, by setting; nothing when it is not set.

    It is `bits=4,granularity=30,p=1/32`, or the path of a TOML file with such settings, which ends in .toml. Raises
    ConfigurationError when it is neither; names and values are checked by ThcConfig.
    """
    text = os.environ.get(VARIABLE, "").strip()
    try:
        return tomllib.loads(Path(text).read_text(encoding="utf-8")) if text.endswith(".toml") else _parse(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{VARIABLE}={text!r}: {error}; write {VARIABLE}=bits=4,granularity=30,p=1/32 or the path of a TOML file"
        ) from error


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


def _value(text: str) -> int | float | bool | str:
    """A number, a fraction, true or false; anything else is a word such as auto."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        return {"true": True, "false": False}.get(text.lower(), text)
