"""A table drawn over the normal density: where the quantization values lie, and how dense coordinates are there."""

from __future__ import annotations

import math
from pathlib import Path

from byteps_thc.errors import ConfigurationError
from byteps_thc.tables.lookup_table import LookupTable

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def density(x: float) -> float:
    """phi(x), the standard normal density."""
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def quantization_values(table: LookupTable) -> list[float]:
    """Return the quantization values in units of the norm: -t_p .. t_p."""
    return [table.threshold * (2 * value / table.granularity - 1) for value in table.values]


def terminal_chart(table: LookupTable, width: int = 79, height: int = 10) -> str:
    """Return the density between -4 and 4 in block characters, the quantization values marked below it."""
    reach = 4.0
    centre = [(column + 0.5) / width * 2 * reach - reach for column in range(width)]
    filled = [density(x) / density(0) * height for x in centre]
    lines = []
    for row in reversed(range(height)):
        parts = [min(max(round((level - row) * 8), 0), 8) for level in filled]
        lines.append("".join(_EIGHTHS[part] for part in parts).rstrip())
    marks = [" "] * width
    for value in quantization_values(table):
        column = min(max(int((value + reach) / (2 * reach) * width), 0), width - 1)
        marks[column] = "┃" if marks[column] == " " else "╋"  # the cross: several values in one column
    axis = ["─"] * width
    labels = [" "] * width
    for tick in range(-4, 5):
        column = min(round((tick + reach) / (2 * reach) * (width - 1)), width - 1)
        axis[column] = "┴"
        text = str(tick)
        start = min(max(column - len(text) + 1, 0), width - len(text))
        labels[start : start + len(text)] = text
    return "\n".join([*lines, "".join(axis), "".join(marks).rstrip(), "".join(labels).rstrip()])


def save_png(table: LookupTable, path: Path) -> None:
    """Draw the same with matplotlib. ConfigurationError when it is not installed."""
    try:
        from matplotlib.figure import Figure  # optional dependency
    except ImportError as error:
        raise ConfigurationError("PNG output needs matplotlib: pip install 'matplotlib>=3.8'") from error
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    x = [i / 100 - 4 for i in range(801)]
    inside = [abs(value) <= table.threshold for value in x]
    y = [density(value) for value in x]
    axes.plot(x, y, color="black", linewidth=1)
    axes.fill_between(x, y, where=inside, color="tab:blue", alpha=0.2, label=f"not clamped ({1 - table.p:.2%})")
    values = quantization_values(table)
    axes.vlines(values, 0, [density(value) for value in values], color="tab:blue", label="quantization values")
    for value, code in zip(values, table.values, strict=True):
        axes.annotate(str(code), (value, density(value)), ha="center", va="bottom", fontsize=7)
    axes.set(
        title=f"b = {table.bits}, g = {table.granularity}, p = 1/{1 / table.p:g}: cost {table.cost:.4g}",
        xlabel="coordinate / norm",
        ylabel="density",
        ylim=(0, None),
    )
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
