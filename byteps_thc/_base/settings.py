"""Base of all settings: typed keyword arguments, checked when they are made."""

import difflib
import logging
import re
from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from typing_extensions import dataclass_transform

from byteps_thc._base.errors import ConfigurationError

_logger = logging.getLogger("byteps_thc")


class _Bool:
    """A bool that pydantic never takes for a number."""

    def __init__(self, value: bool) -> None:
        self._value = value

    def __repr__(self) -> str:
        return repr(self._value)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class Settings(BaseModel, frozen=True):
    """A frozen pydantic model that raises ConfigurationError, one line per wrong setting."""

    model_config = ConfigDict(extra="forbid")
    #: for errors about a setting {} that is given elsewhere; "" if users do not make the class
    _place: ClassVar[str] = ""

    if not TYPE_CHECKING:  # type checkers derive a signature from the fields if they see no __init__

        def __init__(self, **settings):
            try:
                super().__init__(**settings)
            except ValidationError as error:
                raise ConfigurationError(explain(error, type(self))) from None  # pydantic's own text would confuse

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bools(cls, value: object, info: ValidationInfo) -> object:
        kind = cls.model_fields[info.field_name or ""].annotation
        allowed = bool in (kind, *get_args(kind)) or kind == Any
        return _Bool(value) if isinstance(value, bool) and not allowed else value


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Return one line per wrong setting of `model`, without pydantic's type codes and links."""
    lines: dict[tuple[str, str], list[str]] = {}
    for detail in error.errors():
        # A union reports each alternative; the first part of the location is the setting.
        setting = str(detail["loc"][0]) if detail["loc"] else ""
        message = re.sub(r"^Input should ", "must ", detail["msg"].removeprefix("Value error, "))
        if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
            message = f"{model.__name__} has no such setting{similar_to(setting, model.model_fields)}"
        given = f" (given: {detail['input']!r})" if setting else ""
        first = message if message.startswith(model.__name__) else message[:1].lower() + message[1:]
        messages = lines.setdefault((setting, given), [])
        messages.append(first.removeprefix("must be ") if messages else first)
    return "; ".join(
        f"{setting}: {' or '.join(messages)}{given}" if setting else messages[0]
        for (setting, given), messages in lines.items()
    )


@cache
def warn_once(text: str) -> None:
    _logger.warning("%s", text)


def describe(value: object) -> str:
    if value is None or isinstance(value, type):
        return str(value) if value is None else f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def places_of(name: str) -> list[str]:
    """Return where a setting belongs, of kinds that users do not make."""
    return [kind._place.format(name) for kind in Settings.__subclasses__() if kind._place and name in kind.model_fields]


def similar_to(name: str, names: Collection[str]) -> str:
    """Return the end of a message about an unknown name: similar names, or all."""
    if names and (places := places_of(name)):
        return f": it is a setting of {', or of '.join(places)}"
    if similar := difflib.get_close_matches(name, names, n=3):
        return f", did you mean {' or '.join(similar)}?"
    return f", only {', '.join(names)}" if names else ""


class RefusesUnknown:
    """Dataclasses of settings: raise ConfigurationError for an unknown setting."""

    if not TYPE_CHECKING:  # type checkers would take it for the signature

        def __new__(cls, *_, **settings):
            names = cls.__dict__.get("__dataclass_fields__", settings)  # pydantic's models check theirs
            for name in settings:
                if name not in names:
                    every = [own for own in names if own[0] != "_"]
                    raise ConfigurationError(f"{name}: {cls.__name__} has no such setting{similar_to(name, every)}")
            return super().__new__(cls)
