"""Shared by the parts of a job description: their base class, and the types of addresses and ports."""

import re
from collections.abc import Hashable, Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from byteps_thc._base.errors import ConfigurationError
from thc_switch import limits

_MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")


def _check_mac(text: str) -> str:
    mac = text.lower().replace("-", ":")
    if not _MAC.fullmatch(mac):
        raise ValueError(f"{text!r} is not a MAC address such as 02:00:00:00:00:01")
    if int(mac[:2], 16) & 1:
        raise ValueError(f"{text!r} is a group address; give the station's own")
    return mac


MacAddress = Annotated[str, AfterValidator(_check_mac)]
#: The kernel allows more, but not ".", ".." or names with a slash or a blank.
InterfaceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,14}$")]
#: IP:PORT or NAME:PORT, IPv6 in brackets.
ControlAddress = Annotated[str, Field(pattern=r"^[A-Za-z0-9\[][A-Za-z0-9.:\[\]_-]*$")]
PortNumber = Annotated[int, Field(ge=0, le=limits.MAX_PORT)]
PortSpeed = Literal["10G", "25G", "40G", "50G", "100G", "200G", "400G"]
UdpPort = Annotated[int, Field(ge=1, le=65535)]


class Description(BaseModel):
    """A part of a job description; invalid values raise ConfigurationError."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ConfigurationError(_explain(error)) from error


def refuse_repeated(what: str, values: Iterable[Hashable]) -> None:
    """Raise ValueError for the first repeated value."""
    seen = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} {value} is given twice; give each its own")
        seen.add(value)


def _explain(error: ValidationError) -> str:
    """Return one line per mistake, without pydantic's type codes and links."""
    lines = []
    for detail in error.errors():
        where = ".".join(str(part) for part in detail["loc"])
        message = re.sub(r"^Input should ", "must ", detail["msg"].removeprefix("Value error, "))
        lines.append(f"{where}: {message}" if where else message)
    return "; ".join(dict.fromkeys(lines))
