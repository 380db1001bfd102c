"""What must have ended before Python does: threads of C++ that would still want the interpreter, or devices, then."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable

_open: dict[weakref.WeakMethod[Callable[[], None]], int] = {}


def close_at_exit(close: Callable[[], None]) -> None:
    """Call a method when this process's Python ends, if its object is still there. A forked child does not."""
    _open[weakref.WeakMethod(close, lambda gone: _open.pop(gone, None))] = os.getpid()


@atexit.register
def _close_open() -> None:
    for method, process in list(_open.items()):
        if process == os.getpid() and (close := method()) is not None:
            close()
