"""The error of a call, as text that a rank can report."""

from collections.abc import Callable


def error_of(call: Callable[[], object]) -> str:
    """Return its type and message, and an empty text without an error."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
