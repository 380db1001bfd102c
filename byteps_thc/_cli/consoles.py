"""Where commands print tables."""

from __future__ import annotations

import os

from rich.console import Console

_NO_LIMIT = 10_000  # columns


def table_console() -> Console:
    """Return one that is as wide as the terminal; for pipes and files, which people grep, a row is one line.

    $COLUMNS says otherwise, as it does for a terminal.
    """
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_NO_LIMIT)
