"""What must have ended before Python does: threads of C++ that would still want the interpreter, or devices, then."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class Closable(Protocol):
    """Held weakly, so it must be hashable by identity."""

    def close(self) -> None:
        """End the threads; may be called again."""


def close_at_exit(closable: Closable) -> None:
    """Close it when this process's Python ends, if it is still there; a forked child leaves it alone."""
    _open[closable] = os.getpid()


_open: weakref.WeakKeyDictionary[Closable, int] = weakref.WeakKeyDictionary()


@atexit.register
def _close_open() -> None:
    for closable, process in list(_open.items()):
        if process == os.getpid():
            closable.close()
