"""A claim of the paper, and its measured result.

evaluation/claims has a file for each, which ends in

    CLAIM = Claim(name="granularity", ..., measure=measure)

Everything that measure() returns goes into evaluation/results/<name>.json, and from there to evaluation/claims.md.
"""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

#: Claims in the order of the page; each is a module of evaluation/claims.
NAMES = (
    "error_by_scheme",
    "granularity",
    "round_time",
    "time_to_loss",
    "loss_by_bits",
    "timed_model",
    "scale",
    "loss_and_stragglers",
    "ablation",
    "diloco",
    "gathered_weights",
    "tables",
)
Axis = Literal["linear", "log"]


@dataclass(frozen=True)
class Check:
    """One expectation. expected: with its tolerance; got: in the same words; met: whether it held.

    why: the known reason of a failure; empty else.
    """

    what: str
    expected: str
    got: str
    met: bool
    why: str = ""


@dataclass(frozen=True)
class Table:
    """cells[0] is the heading; all cells as text."""

    title: str
    cells: list[list[str]]


@dataclass(frozen=True)
class Series:
    """A line of a plot. scheme: has its colour everywhere (style.py). spread: half of an error bar, or nothing.

    label: in the legend; empty: the scheme.
    """

    scheme: str
    x: list[float]
    y: list[float]
    spread: list[float] = field(default_factory=list)
    label: str = ""


@dataclass(frozen=True)
class Plot:
    """name: the file's, <name>.svg. x, y: titles of the axes, with units. bars: one for each scheme at each x."""

    name: str
    title: str
    x: str
    y: str
    series: list[Series]
    x_axis: Axis = "linear"
    y_axis: Axis = "linear"
    bars: bool = False


#: More lines are not told apart.
MOST_SERIES = 6


@dataclass(frozen=True)
class Drawn:
    """A plot's drawn series: scheme -> label, MOST_SERIES at most. The results' files have all series.

    against: a scheme by whose y the others' are divided where it has such an x, on a line between logarithms of its
    points; empty: none. title, y: in place of the plot's; empty: the plot's.
    """

    labels: dict[str, str]
    against: str = ""
    title: str = ""
    y: str = ""


@dataclass(frozen=True)
class Result:
    """Result of a claim. data: the figures behind it, as JSON has them."""

    checks: list[Check]
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    data: Any = None

    @classmethod
    def of(cls, found: dict[str, Any]) -> "Result":
        """From the output of dataclasses.asdict()."""
        plots = [Plot(**{**plot, "series": [Series(**one) for one in plot["series"]]}) for plot in found["plots"]]
        checks = [Check(**check) for check in found["checks"]]
        return cls(checks, [Table(**table) for table in found["tables"]], plots, found["data"])


@dataclass(frozen=True)
class Claim:
    """figure: of the paper. paper: its statement. minutes: limit of measure(False) on two cores.

    stand_in: the part of the paper's experiment that two cores cannot repeat, and its replacement. measure: quick or
    not; quick takes a minute or less, on smaller data, and has the same checks. root: needs it.
    """

    name: str
    title: str
    figure: str
    paper: str
    stand_in: str
    minutes: int
    measure: Callable[[bool], Result]
    root: bool = False
    #: name of a plot -> its part that is drawn; other plots are drawn as they are
    drawn: Mapping[str, Drawn] = field(default_factory=dict)

    @property
    def command(self) -> str:
        return f"make evaluate ARGS={self.name}"

    def plots_of(self, result: Result) -> list[Plot]:
        """Return the plots as they are drawn. Raises ValueError for one with too many series."""
        plots = [shown(plot, self.drawn[plot.name]) if plot.name in self.drawn else plot for plot in result.plots]
        for plot in plots:
            if len(plot.series) > MOST_SERIES:
                raise ValueError(f"{plot.name} has {len(plot.series)} series: choose {MOST_SERIES} in Claim.drawn")
        return plots


def shown(plot: Plot, drawn: Drawn) -> Plot:
    """Return the part of a plot that is drawn. Raises KeyError for a scheme that it does not have."""
    by_scheme = {one.scheme: one for one in plot.series}
    series = [by_scheme[scheme] for scheme in drawn.labels]
    if drawn.against:
        series = [ratio(one, by_scheme[drawn.against]) for one in series]
    series = [replace(one, label=drawn.labels[one.scheme]) for one in series]
    return replace(plot, title=drawn.title or plot.title, y=drawn.y or plot.y, series=series)


def ratio(series: Series, to: Series) -> Series:
    """Divide a series by another, at each x between two points of the other."""
    pairs = [(x, y / below) for x, y in zip(series.x, series.y, strict=True) if (below := between(to, x)) is not None]
    return Series(series.scheme, [x for x, _ in pairs], [y for _, y in pairs])


def between(series: Series, x: float) -> float | None:
    """Return y at x, on a line between logarithms of y; None beyond the ends. x: increasing in the series."""
    for (x0, y0), (x1, y1) in pairwise(zip(series.x, series.y, strict=True)):
        if x0 <= x <= x1:
            part = (x - x0) / (x1 - x0)
            return math.exp((1 - part) * math.log(y0) + part * math.log(y1))
    return None


def claim_of(name: str) -> Claim:
    """Import a claim."""
    claim: Claim = importlib.import_module(f"claims.{name}").CLAIM
    return claim
