"""A claim of the paper, and what measuring it gives.

evaluation/claims has a file for each, which ends in

    CLAIM = Claim(name="granularity", ..., measure=measure)

Everything that measure() returns goes into evaluation/results/<name>.json, and from there to evaluation/claims.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

#: In the order of the page; each is a module of evaluation/claims.
NAMES = (
    "error_by_scheme",
    "granularity",
    "round_time",
    "time_to_loss",
    "loss_by_bits",
    "scale",
    "loss_and_stragglers",
    "ablation",
    "diloco",
    "tables",
)
Axis = Literal["linear", "log"]


@dataclass(frozen=True)
class Check:
    """One expectation. expected: with its tolerance; got: in the same words; met: whether it held.

    why: where it did not hold, what is known of the reason; empty else.
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
    """A line of a plot. scheme: has its colour everywhere (style.py). spread: half of an error bar, or nothing."""

    scheme: str
    x: list[float]
    y: list[float]
    spread: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Plot:
    """name: of its file, <name>.svg. x, y: what the axes show, with units. bars: one for each scheme at each x."""

    name: str
    title: str
    x: str
    y: str
    series: list[Series]
    x_axis: Axis = "linear"
    y_axis: Axis = "linear"
    bars: bool = False


@dataclass(frozen=True)
class Result:
    """What measuring a claim gives. data: the figures behind it, as JSON has them."""

    checks: list[Check]
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    data: Any = None

    @classmethod
    def of(cls, found: dict[str, Any]) -> Result:
        """From what dataclasses.asdict() gives."""
        plots = [Plot(**{**plot, "series": [Series(**one) for one in plot["series"]]}) for plot in found["plots"]]
        checks = [Check(**check) for check in found["checks"]]
        return cls(checks, [Table(**table) for table in found["tables"]], plots, found["data"])


@dataclass(frozen=True)
class Claim:
    """figure: of the paper. paper: what that says. minutes: that measure(False) takes at most on two cores.

    stand_in: what of the paper's experiment cannot be had on two cores, and what is measured in its place.
    measure: quick or not; quick takes a minute or less, on smaller data, and has the same checks. root: needs it.
    """

    name: str
    title: str
    figure: str
    paper: str
    stand_in: str
    minutes: int
    measure: Callable[[bool], Result]
    root: bool = False

    @property
    def command(self) -> str:
        return f"make evaluate ARGS={self.name}"


def claim_of(name: str) -> Claim:
    """Import a claim."""
    claim: Claim = importlib.import_module(f"claims.{name}").CLAIM
    return claim
