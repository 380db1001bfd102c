"""Figures as curves of TensorBoard, or of Weights & Biases."""

from __future__ import annotations

import math
from typing import Protocol

from byteps_thc._engine.statistics.stats import CompressionStats


class ScalarWriter(Protocol):
    """What of torch.utils.tensorboard.SummaryWriter is needed; tensorboardX and others have it too."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Write one point of a curve."""


class RunLog(Protocol):
    """What of a run of wandb is needed, which wandb.init() returns."""

    def log(self, data: dict[str, float], step: int) -> object:
        """Write a point of each curve."""


class StatsWriter:
    """Writes each field of CompressionStats as a curve "thc/<field>".

        StatsWriter(SummaryWriter("runs/1")).write(state.compression_stats(), step)
        StatsWriter(wandb.init(project="gpt")).write(state.compression_stats(), step)

    NaN (nmse without error feedback, ratio before the first step) is left out: TensorBoard draws it as a gap.
    """

    def __init__(self, writer: ScalarWriter | RunLog, prefix: str = "thc/") -> None:
        self._writer = writer
        self._prefix = prefix

    def write(self, stats: CompressionStats, step: int) -> None:
        """Write the figures as those of `step`."""
        figures = {self._prefix + field: value for field, value in stats.as_dict().items() if not math.isnan(value)}
        if hasattr(self._writer, "log"):
            self._writer.log(figures, step=step)
            return
        for tag, value in figures.items():
            self._writer.add_scalar(tag, value, step)
