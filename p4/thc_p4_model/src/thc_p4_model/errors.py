"""Errors of the running model; errors in programs are `interfaces.P4Error`."""

import difflib
from collections.abc import Collection


class ControlError(ValueError):
    """The control plane asked for something the program does not have, or for a value that does not fit."""


class PacketError(RuntimeError):
    """The program sent a packet where the switch cannot."""


class PacketLoopError(PacketError):
    """A packet did not leave the switch within the allowed passes."""


def resolve(name: str, names: Collection[str], what: str) -> str:
    """The full name that `name` means: itself, without a leading `pipe.`, or the only one it is a dotted suffix of."""
    if name in names:
        return name
    name = name.removeprefix("pipe.")
    if name in names:
        return name
    matches = sorted(full for full in names if full.endswith(f".{name}"))
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ControlError(f"{what} {name!r} is ambiguous: {', '.join(matches)}")
    parts = name.count(".") + 1
    by_tail = {".".join(full.split(".")[-parts:]): full for full in names}
    close = [by_tail[tail] for tail in difflib.get_close_matches(name, by_tail, n=3)]
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(sorted(names)) or 'none'}"
    raise ControlError(f"no {what} {name!r}; {hint}")
