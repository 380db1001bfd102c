"""A table drawn over the normal density: where the quantization values lie, and how dense coordinates are there."""

from __future__ import annotations

import math

from byteps_thc._scheme.tables.lookup_table import LookupTable

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
