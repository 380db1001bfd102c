"""Warnings of the package's log in a rank, as texts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def warnings_of_log() -> Iterator[list[str]]:
    """Give a list that gets the texts of the warnings that are logged meanwhile."""
    texts: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    handler, logger = Handler(logging.WARNING), logging.getLogger("byteps_thc")
    logger.addHandler(handler)
    yield texts
    logger.removeHandler(handler)
