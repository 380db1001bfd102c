"""Imports BytePS's PyTorch plug-in and says what is installed."""

from __future__ import annotations

import importlib
import json
from importlib.metadata import PackageNotFoundError, version


def probe() -> dict[str, object]:
    """{"installed": False}, or versions."""
    try:
        installed = version("byteps")
    except PackageNotFoundError:
        return {"installed": False}
    importlib.import_module("byteps.torch")
    return {"installed": True, "version": installed}


if __name__ == "__main__":
    print(json.dumps(probe()))
