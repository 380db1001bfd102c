"""The points that ranks round to, and their errors (`thc tables auto --engine collective`)."""

from __future__ import annotations

import json
from statistics import fmean
from typing import Any

import typer
from rich.table import Table

from byteps_thc._cli.consoles import table_console
from byteps_thc._scheme.rank_settings import RankSettings
from byteps_thc._scheme.tables.points import quantization_error


def print_points(settings: RankSettings, *, as_json: bool) -> None:
    """Print bits and errors each way, and the error of the average. as_json: with the points of all ranks."""
    report = points_report(settings)
    if as_json:
        typer.echo(json.dumps(report))
        return
    table = Table("", "bits", "NMSE", "points of rank 0")
    for way in ("up", "down"):
        bits, nmse, points = report[way].values()
        # The first and the last ones: the points of 8 bits fill a screen.
        shown = [f"{point:.3f}" for point in points[0]]
        table.add_row(way, str(bits), f"{nmse:.4e}", " ".join([*shown[:4], "..", *shown[-4:]] if bits > 3 else shown))
    console = table_console()
    console.print(table)
    console.print(
        f"NMSE, average of {settings.ranks}: {report['nmse']:.4e} (independent gradients); "
        f"{report['up']['bits'] + report['down']['bits']} bits both ways"
    )


def points_report(settings: RankSettings) -> dict[str, Any]:
    """Return bits, error and points each way, and the error of the average.

    Errors are relative to the energy of independent normal gradients. The error of the average is the mean of the
    ranks' errors, plus the error of the way down, which rounds the average with these errors. points: of each rank.
    """
    down = settings.down
    up_nmse, down_nmse = fmean(map(quantization_error, settings.up)), quantization_error(down)
    return {
        "ranks": settings.ranks,
        "nmse": up_nmse + down_nmse * (1 + up_nmse),
        "up": {"bits": settings.bits, "nmse": up_nmse, "points": settings.up_points.tolist()},
        "down": {"bits": down.bits, "nmse": down_nmse, "points": [down.points.tolist()]},
    }
