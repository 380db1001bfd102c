"""What compression does to a training run: figures, a log line and TensorBoard scalars. No torch needed."""

from byteps_thc._engine.statistics.rank_zero_log import RankZeroLog, require_log_interval
from byteps_thc._engine.statistics.recorder import StatsRecorder
from byteps_thc._engine.statistics.stats import CompressionStats
from byteps_thc._engine.statistics.writer import StatsWriter

__all__ = [
    "CompressionStats",
    "RankZeroLog",
    "StatsRecorder",
    "StatsWriter",
    "require_log_interval",
]
