"""Tables that are piped: a row is a line, whatever it says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
from rich.table import Table
from byteps_thc._cli.consoles import table_console
table = Table("check", "what it means")
table.add_row("path", "/long" * 60)
table_console().print(table)
"""


@pytest.mark.parametrize(("columns", "whole"), [(None, True), ("60", False)])
def test_a_row_is_one_line_for_grep(columns: str | None, whole: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {} if columns is None else {"COLUMNS": columns}
    printed = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert ("/long" * 60 in printed) is whole
