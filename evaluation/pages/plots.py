"""Plots of results as SVG files, the same bytes for the same figures."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator, NullFormatter

from pages.claim import Plot, Series
from pages.style import style_of

SIZE_INCHES = (7.0, 4.0)
_HATCHES = ("", "//", "..", "xx")
#: Text stays text, small and searchable; identifiers that do not change from run to run.
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "evaluation", "font.size": 9, "axes.spines.top": False}


def draw(plot: Plot, folder: Path) -> Path:
    """Write <folder>/<name>.svg."""
    mpl.use("svg")
    from matplotlib import pyplot as plt

    path = folder / f"{plot.name}.svg"
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context({**_SETTINGS, "axes.spines.right": False}):
        figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
        # First: a scale makes its own ticks, and bars have labels.
        axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y, xscale=plot.x_axis, yscale=plot.y_axis)
        if plot.bars:
            _bars(axes, plot)
        else:
            _lines(axes, plot.series)
        for axis, kind in ((axes.xaxis, plot.x_axis), (axes.yaxis, plot.y_axis)):
            if kind == "log" and not (plot.bars and axis is axes.xaxis):
                _decimals(axis)
        axes.grid(visible=True, alpha=0.3)
        figure.legend(loc="outside right center", frameon=False, fontsize=8)
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        plt.close(figure)
    return path


def _decimals(axis: Axis) -> None:
    """Label a logarithmic axis by 0.1 and 100 instead of powers, if its ends are that near."""
    least, most = axis.get_view_interval()
    if least >= 1e-3 and most < 1e5:
        axis.set_major_formatter("{x:g}")
        if most / least < 100:  # few powers of ten: label more
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())


def _lines(axes: Axes, series: list[Series]) -> None:
    names: list[str] = []
    for one in series:
        spread = {"yerr": one.spread, "capsize": 2} if one.spread else {}
        label = one.label or one.scheme
        axes.errorbar(one.x, one.y, label=label, markersize=5, **style_of(one.scheme, names), **spread)
        names.append(one.scheme)


def _bars(axes: Axes, plot: Plot) -> None:
    """A group at each x, which is a label here. Schemes of one colour differ in their hatches."""
    labels = list(dict.fromkeys(x for one in plot.series for x in one.x))
    width, colors = 0.8 / len(plot.series), list[str]()
    for i, one in enumerate(plot.series):
        at = [labels.index(x) + (i - (len(plot.series) - 1) / 2) * width for x in one.x]
        color = style_of(one.scheme, [])["color"]
        hatch = _HATCHES[colors.count(color) % len(_HATCHES)]
        spread = {"yerr": one.spread, "capsize": 2} if one.spread else {}
        axes.bar(at, one.y, width, label=one.label or one.scheme, color=color, hatch=hatch, edgecolor="white", **spread)
        colors.append(color)
    axes.set_xticks(range(len(labels)), [f"{label:g}" for label in labels])
