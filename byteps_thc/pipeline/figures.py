"""What quantization did to the gradients of a step, for statistics."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from byteps_thc.pipeline.statistics import GRADIENTS_PER_LOOK, ResidualGuard, StatsRecorder


class Figures(Protocol):
    """Brings them to a StatsRecorder."""

    def start_step(self) -> None:
        """Forget what nobody has read of the step before."""

    def read(self) -> None:
        """Report what is not reported yet."""

    def add_time(self, *, encode_ms: float = 0.0, communicate_ms: float = 0.0, decode_ms: float = 0.0) -> None:
        """See StatsRecorder."""


class PartitionFigures(Figures):
    """Of partitions (compressor.Partition), at once. guard: looks at their residuals now and then."""

    def __init__(self, recorder: StatsRecorder, guard: ResidualGuard) -> None:
        self._recorder, self._guard = recorder, guard
        self._encoded: Counter[str] = Counter()

    def start_step(self) -> None:
        """Do nothing."""

    def encoded(self, partition: Any) -> None:
        """Note a partition that was encoded."""
        self._encoded[partition.name] += 1
        if self._encoded[partition.name] % GRADIENTS_PER_LOOK == 0:
            self._guard.look(partition)
        self._recorder.add_quantization(
            coordinates=partition.coordinates,
            clamped=partition.clamped,
            energy=partition.energy,
            # The engine measures it when somebody asks.
            lost_energy=0.0 if partition.residual_kept else None,
        )

    def read(self) -> None:
        """Do nothing."""

    def add_time(self, *, encode_ms: float = 0.0, communicate_ms: float = 0.0, decode_ms: float = 0.0) -> None:
        """See Figures."""
        self._recorder.add_time(encode_ms=encode_ms, communicate_ms=communicate_ms, decode_ms=decode_ms)
