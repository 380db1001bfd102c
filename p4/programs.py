"""Where the switch programs of this package are."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
#: What the programs include.
INCLUDE_FOLDER = _FOLDER / "include"


def program_path(program: str) -> Path:
    """Source of a program: "v1model" or "tna"."""
    return _FOLDER / program / f"thc_{program}.p4"
