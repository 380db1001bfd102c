"""What setup.py needs of Python packages, in a folder of its own: the environment's own packages stay as they are."""

from __future__ import annotations

import sys
from pathlib import Path

from byteps_build.commands import run


def install(folder: Path, log: Path) -> dict[str, str]:
    """Install a setuptools that can build wheels, once, and return the variables with which pip finds it."""
    marker = folder / "complete"
    if not marker.exists():
        folder.mkdir(parents=True, exist_ok=True)
        packages = ["--quiet", "--upgrade", "--target", str(folder), "setuptools>=70.1,<85"]
        run([sys.executable, "-m", "pip", "install", *packages], log=log, cwd=folder)
        marker.touch()
    return {"PYTHONPATH": str(folder)}
