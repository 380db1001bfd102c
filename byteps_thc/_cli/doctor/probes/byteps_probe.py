"""Imports BytePS's PyTorch plug-in, loads THC's compressor into it, and says what is installed."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version


def probe() -> dict[str, object]:
    """{"installed": False}, or versions and whether THC's compressor is there."""
    try:
        installed = version("byteps")
    except PackageNotFoundError:
        return {"installed": False}
    import torch

    from byteps_thc._net.byteps.worker_library import find_worker_library
    from byteps_thc._scheme.errors import ConfigurationError

    answer: dict[str, object] = {"installed": True, "version": installed, "torch": torch.__version__}
    try:
        return answer | {"compressor": find_worker_library() is not None}
    except ConfigurationError as error:
        return answer | {"error": str(error)}


if __name__ == "__main__":
    print(json.dumps(probe()))
