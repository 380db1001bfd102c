"""What compression does to a training run: figures, a log line and TensorBoard scalars. No torch needed."""

from byteps_thc.statistics.rank_zero_log import RankZeroLog
from byteps_thc.statistics.recorder import StatsRecorder
from byteps_thc.statistics.stats import CompressionStats
from byteps_thc.statistics.writer import StatsWriter

__all__ = ["CompressionStats", "RankZeroLog", "StatsRecorder", "StatsWriter"]
