"""Log lines of byteps_thc, for programs that run outside of pytest."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def log_lines() -> Iterator[list[str]]:
    """Collect the messages that are logged within the block."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("byteps_thc")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
