"""Plots show what they should."""

from __future__ import annotations

from pathlib import Path

from pages.claim import Plot, Series
from pages.plots import draw


def test_bars_are_labelled_with_their_x(tmp_path: Path) -> None:
    series = [Series("fp32", [25.0, 100.0], [1.0, 2.0]), Series("THC", [25.0, 100.0], [3.0, 4.0])]
    text = draw(Plot("bars", "Title", "Gb/s", "ms", series, y_axis="log", bars=True), tmp_path).read_text()
    for label in ("25", "100", "fp32", "THC"):
        assert f">{label}</text>" in text
