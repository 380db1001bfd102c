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


@pytest.mark.parametrize("arguments", [("show", "-b", "8", "-g", "255"), ("list", "-b", "5")], ids=" ".join)
def test_thc_tables_prints_the_values_of_a_table_on_one_line(arguments: tuple[str, ...]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-P", "-m", "byteps_thc", "tables", *arguments]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    rows = [line for line in printed.splitlines() if " 0 1 " in line]
    assert rows
    assert all(len(row.split()) >= 1 << int(arguments[2]) for row in rows)
