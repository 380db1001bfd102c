"""Plots of commands: matplotlib, where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from byteps_thc.errors import ConfigurationError


def new_plot() -> tuple[Any, Any]:
    """Return a figure and its axes; ConfigurationError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"--plot needs {error.name}: pip install matplotlib") from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def save_plot(figure: Any, path: Path) -> None:
    """Write a figure, in the format that the path's suffix names; ConfigurationError where that cannot be."""
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--plot cannot write {path}: {error}") from error
