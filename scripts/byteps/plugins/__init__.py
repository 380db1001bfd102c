"""Shared objects that extend BytePS: its C++ registry takes compressors from any object loaded into the process.

Installed as byteps.plugins by `make byteps`.
"""

import ctypes
from pathlib import Path

_FOLDER = Path(__file__).parent


def load_for_server() -> None:
    """Load every *_server.so of this folder, which registers itself. Repeated calls do nothing.

    BytePS's module must be loaded, with its symbols global.
    """
    for library in sorted(_FOLDER.glob("*_server.so")):
        ctypes.CDLL(str(library))


def load_for_worker(name: str) -> ctypes.CDLL:
    """Load NAME_worker.so of this folder, after byteps.torch; OSError if it is missing."""
    return ctypes.CDLL(str(_FOLDER / f"{name}_worker.so"))
