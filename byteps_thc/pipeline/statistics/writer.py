"""Figures as TensorBoard scalars."""

from __future__ import annotations

import math
from typing import Protocol

from byteps_thc.pipeline.statistics.stats import CompressionStats


class ScalarWriter(Protocol):
    """What of torch.utils.tensorboard.SummaryWriter is needed; tensorboardX and others have it too."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Write one point of a curve."""


class StatsWriter:
    """Writes each field of CompressionStats as a scalar "thc/<field>".

        StatsWriter(SummaryWriter("runs/1")).write(state.compression_stats(), step)

    NaN (nmse without error feedback, ratio before the first step) is left out: TensorBoard draws it as a gap.
    """

    def __init__(self, summary_writer: ScalarWriter, prefix: str = "thc/") -> None:
        self._writer = summary_writer
        self._prefix = prefix

    def write(self, stats: CompressionStats, step: int) -> None:
        """Write the figures as those of `step`."""
        for field, value in stats.as_dict().items():
            if not math.isnan(value):
                self._writer.add_scalar(self._prefix + field, value, step)
