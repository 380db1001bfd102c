"""Warnings that a process gives once, however many engines it makes."""

from __future__ import annotations

import logging
from functools import cache

_logger = logging.getLogger("byteps_thc")


@cache
def warn_once(text: str) -> None:
    """Warn, unless this process has done so in the same words."""
    _logger.warning("%s", text)
