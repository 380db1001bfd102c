"""Errors of processes, in words: which, where, how it ended, and the last it said."""

from __future__ import annotations

import signal

from byteps_thc.errors import ThcError
from thc_lab.testbed.hosts.kept import KeptHost
from thc_lab.testbed.process import PlannedProcess

LAST_LINES = 20


def how_it_ended(status: int | None) -> str:
    """In words, for an exit status that is negative for a signal, and None when nobody saw it."""
    if status is None:
        return "is gone, and nobody saw how: its host was started anew, or its supervisor was killed"
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return f"was ended by signal {-status} ({name})"


async def with_last_lines(message: str, process: PlannedProcess, kept: KeptHost) -> str:
    """The message, and the last lines of the process's log."""
    try:
        lines = await kept.tail(process.name, LAST_LINES)
    except ThcError as error:
        return f"{message}. Its log cannot be read: {error}"
    if not lines:
        return f"{message}, without a word in its log"
    return "\n".join([f"{message}. The last lines of its log:", *(f"  {line}" for line in lines)])
