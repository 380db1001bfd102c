"""What quantization did to the gradients of a step, for statistics."""

from __future__ import annotations

from collections import Counter
from typing import Any

from byteps_thc.pipeline.statistics import GRADIENTS_PER_LOOK, ResidualGuard, StatsRecorder


class PartitionFigures:
    """Reports partitions (compressor.Partition) to a recorder. guard: looks at their residuals now and then."""

    def __init__(self, recorder: StatsRecorder, guard: ResidualGuard) -> None:
        self.recorder, self._guard = recorder, guard
        self._encoded: Counter[str] = Counter()

    def encoded(self, partition: Any) -> None:
        """Note a partition that was encoded."""
        self._encoded[partition.name] += 1
        if self._encoded[partition.name] % GRADIENTS_PER_LOOK == 0:
            self._guard.look(partition)
        self.recorder.add_quantization(
            coordinates=partition.coordinates,
            clamped=partition.clamped,
            energy=partition.energy,
            # The engine measures it when somebody asks.
            lost_energy=0.0 if partition.residual_kept else None,
        )
