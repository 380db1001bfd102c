"""A demo's way to show its results."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from thc_lab.demo.links import Links
from thc_lab.demo.settings import RunResult


@dataclass(frozen=True)
class View:
    """Functions of the results, and for plots and sentence of the links."""

    #: for the terminal
    table: Callable[[list[RunResult]], Table]
    #: writes files into a folder; returns their paths
    plots: Callable[[Path, list[RunResult], Links], list[Path]]
    #: printed last; may be empty
    sentence: Callable[[list[RunResult], Links], str]
