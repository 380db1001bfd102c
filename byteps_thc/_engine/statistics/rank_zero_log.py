"""A line in the log every few steps."""

from __future__ import annotations

import logging

from byteps_thc._engine.statistics.stats import CompressionStats
from byteps_thc._scheme.errors import ConfigurationError

_logger = logging.getLogger("byteps_thc")


def require_log_interval(every: object) -> None:
    """Raise ConfigurationError unless `every` is one for RankZeroLog."""
    if not isinstance(every, int) or every < 0:
        raise ConfigurationError(f"log_every must be 0 (never) or a number of steps, not {every!r}")


class RankZeroLog:
    """Logs the figures of every `every`-th step on rank 0 (level INFO, logger "byteps_thc"); 0: never.

    Raises ConfigurationError when `every` is negative. Python shows INFO only when logging is set up, for example
    with logging.basicConfig(level=logging.INFO).
    """

    def __init__(self, *, every: int, rank: int) -> None:
        require_log_interval(every)
        self._every = every if rank == 0 else 0
        self._logged_step = 0

    def due(self, step: int) -> bool:
        """Whether update() would log that step, for callers whose figures take time to make."""
        return self._every > 0 and step != self._logged_step and step % self._every == 0

    def update(self, stats: CompressionStats) -> None:
        """Log the figures if their step is due and was not logged yet. Call it when a step is over."""
        if not self.due(stats.steps):
            return
        self._logged_step = stats.steps
        _logger.info("%s", stats)
