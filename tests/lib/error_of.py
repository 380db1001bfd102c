"""The error of a call, as text that a rank can report."""

from __future__ import annotations

from collections.abc import Callable

from byteps_thc._scheme.errors import ThcError


def error_of(call: Callable[[], object]) -> str:
    """Return its type and message; empty: there was none."""
    try:
        call()
    except ThcError as error:
        return f"{type(error).__name__}: {error}"
    return ""
