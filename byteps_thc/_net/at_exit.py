"""What must have ended before Python does: threads of C++ that would still want the interpreter, or devices, then."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable


def close_at_exit(close: Callable[[], None]) -> None:
    """Call that method when this process's Python ends, if its object is still there; not in a forked child.

    The object is held weakly.
    """
    _open[weakref.WeakMethod(close, _open.pop)] = os.getpid()


_open: dict[weakref.WeakMethod[Callable[[], None]], int] = {}


@atexit.register
def _close_open() -> None:
    for method, process in list(_open.items()):
        if process == os.getpid() and (close := method()) is not None:
            close()
