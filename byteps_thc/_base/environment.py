"""The THC_* variables: launchers set them, and front ends read them as defaults."""

import difflib
import math
import os
import tomllib
from collections.abc import Collection, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.settings import Settings, places_of, similar_to, warn_once

_S = TypeVar("_S", bound=Settings)


class Variable(NamedTuple):
    """Default and meaning of a variable; scripts/generate_settings.py writes both into docs/settings.md."""

    default: str
    meaning: str


_EXAMPLES = {
    "CONFIG": "bits=4,seed=7",
    "POLICY": "warmup_steps=100,exclude=lm_head",
    "SERVERS": "10.0.0.1,10.0.0.2:4000,quorum=0.9",
}
VARIABLES = {
    "BACKEND": Variable("udp", "`udp` (the kernel's) or `dpdk`, which requires `THC_LOCAL`"),
    "CONFIG": Variable("", f"Settings of codes, or a TOML file: `{_EXAMPLES['CONFIG']}`"),
    "DEADLINE_S": Variable("600", "Seconds that a wait for other ranks may take"),
    "EAL_ARGS": Variable("", "Options of DPDK's EAL: `-a 0000:3b:00.1`"),
    "JOB": Variable("1", "Number of the job on the servers, with BytePS of the first lane's job"),
    "KEY_FILE": Variable("", "Path of the file with the key of the jobs"),
    "LOCAL": Variable(
        "", "IP or IP:PORT that the worker binds. With BytePS lane k binds the k-th port above. Unset: any"
    ),
    "LOG_EVERY": Variable("0", "BytePS: steps between lines of statistics in the log of rank 0, 0 for none"),
    "POLICY": Variable("", f"Settings of `CompressionPolicy`, or a TOML file: `{_EXAMPLES['POLICY']}`"),
    "PS": Variable("", "Path of the program thc-ps, for `thc doctor` and demos. Unset: beside Python, or on PATH"),
    "ROUTE": Variable("network", "BytePS: `network` (thc-ps or a switch) or `servers` (the servers of BytePS)"),
    "RUN": Variable("", "ID shared by all workers of one run. Unset: an automatic ID"),
    "SERVERS": Variable("", f"Addresses of servers, and settings, or a TOML file: `{_EXAMPLES['SERVERS']}`"),
}
NAMES = tuple(VARIABLES)


def variable(name: str) -> str:
    assert name in NAMES
    return os.environ.get(f"THC_{name}", "").strip()


def _warn_of_unknown() -> None:
    """Warn once, on the first rank, of THC_* variables that nothing reads.

    THC_TEST... belong to tests and testbeds, THC_SWITCH_STATE to scripts/switch.sh.
    """
    for text in os.environ if os.environ.get("RANK", "0") == "0" else ():
        name = text.removeprefix("THC_")
        if name in (text, *NAMES) or name.startswith(("TEST", "SWITCH")):
            continue
        if similar := difflib.get_close_matches(name, NAMES, n=1):
            mend = f": did you mean THC_{similar[0]}?"
        else:
            places = " and ".join(f"THC_{place}={_EXAMPLES[place]}" for place in ("CONFIG", "POLICY"))
            mend = f": settings go into {places}"
        warn_once(f"{text}: there is no such variable, and nothing reads it{mend}")


def default_deadline_s() -> float:
    """Return the seconds of THC_DEADLINE_S, or its default; ConfigurationError unless they are a positive number."""
    text = variable("DEADLINE_S") or VARIABLES["DEADLINE_S"].default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ConfigurationError(f"THC_DEADLINE_S must be a positive number of seconds, not {text!r}")
    return seconds


def whole_number(name: str, text: str, most: int) -> int:
    """Return the number in the text of a variable; ConfigurationError unless it is in 0 .. most."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 20 or int(text) > most:
        raise ConfigurationError(f"{name} must be a whole number in 0 .. {most}, not {text!r}")
    return int(text)


def variable_settings(name: str, names: Collection[str], *, others: bool = False) -> dict[str, Any]:
    """Return the settings in THC_<name>; empty if it is not set.

    The text is like _EXAMPLES, or the path of a TOML file that ends in .toml. The caller checks values. Raises
    ConfigurationError for anything else, and for a setting that is not in `names`, nor of other codes (others).
    """
    _warn_of_unknown()
    text, label = variable(name), f"THC_{name}"
    try:
        is_file = text.endswith(".toml")
        settings = tomllib.loads(Path(text).read_text(encoding="utf-8")) if is_file else _parse(name, text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{label}={text!r}: {error}; write {label}={_EXAMPLES[name]} or the path of a TOML file"
        ) from error
    for setting in settings:
        if setting not in names and not (others and places_of(setting)):
            raise ConfigurationError(f"{label}: {setting}: there is no such setting{similar_to(setting, names)}")
    return settings


def say_unused(name: str, settings: Mapping[str, Any], used: Mapping[str, Any], instead: str) -> None:
    """Warn once, on the first rank, of ignored settings in THC_<name>. instead: words for their substitute."""
    unused = {setting: value for setting, value in settings.items() if setting not in used or used[setting] != value}
    if unused and os.environ.get("RANK", "0") == "0":
        text = ", ".join(f"{setting}={value}" for setting, value in unused.items())
        warn_once(f"THC_{name}: ignored: {text}; the program sets {instead}, which overrides the variable")


def settings_of_variable(name: str, kind: type[_S], given: Mapping[str, Any]) -> _S:
    """Return the settings of THC_<name>, overridden by `given`.

    A warning names the overridden settings. Raises ConfigurationError for invalid settings, including overridden ones.
    """
    environment = variable_settings(name, kind.model_fields)
    kind(**given)  # reports its own mistakes first, not as the variable's
    try:
        kind(**environment)
        made = kind(**{**environment, **given})
    except ConfigurationError as error:
        raise ConfigurationError(f"{error} (from THC_{name})") from None
    instead = ", ".join(f"{setting}={value}" for setting, value in given.items())
    say_unused(name, environment, made.model_dump(), instead)
    return made


def _parse(name: str, text: str) -> dict[str, Any]:
    """Return items between commas; one without "=" belongs to the setting before it, and the first ones to SERVERS."""
    texts: dict[str, str] = {}
    setting = "servers" if name == "SERVERS" else ""
    for item in filter(None, (item.strip() for item in text.split(","))):
        key, separator, value = (part.strip() for part in item.partition("="))
        if not separator and setting:
            texts[setting] = f"{texts[setting]},{item}" if setting in texts else item
            continue
        if not separator or not key:
            raise ValueError(f"{item!r} is not setting=value")
        if not value:
            raise ValueError(f"{item!r} has no value: omit {key} for its default")
        if key in texts:
            raise ValueError(f"{key} is given twice")
        setting, texts[key] = key, value
    return {key: _value(value) for key, value in texts.items()}


def _value(text: str) -> int | float | bool | str | None:
    """Return a number, a fraction, true, false or none; anything else is a word such as auto."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)
