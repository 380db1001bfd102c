"""The diagrams of README and guide."""

from __future__ import annotations

from pathlib import Path

import diagrams
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(diagrams.DIAGRAMS))
def test_diagrams_are_as_they_are_drawn(name: str) -> None:
    """python evaluation/diagrams.py writes them; the header is that of wire.toml."""
    text = (diagrams.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert text == str(diagrams.DIAGRAMS[name]())
    pages = [ROOT / "README.md", *ROOT.glob("*/*.md"), *ROOT.glob("docs/*/*.md")]
    shown = [path for path in pages if f"diagrams/{name}.svg)" in path.read_text()]
    assert len(shown) == 1
