"""Consoles for tables."""

import os

from rich.console import Console


def table_console(piped_columns: int = 10_000) -> Console:
    """Return a console as wide as $COLUMNS, the terminal, or piped_columns: by default, a row is one line for grep."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=piped_columns)
