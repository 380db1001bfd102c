"""What quantization did to the gradients of a step, for statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from byteps_thc.pipeline.statistics import GRADIENTS_PER_LOOK, ResidualGuard, StatsRecorder


class Figures(Protocol):
    """Brings them to a StatsRecorder."""

    def start_step(self) -> None:
        """Forget what nobody has read of the step before."""

    def encoded(self, rows: Sequence[Any]) -> None:
        """Note the rows of a piece that was encoded."""

    def read(self) -> None:
        """Report what is not reported yet."""

    def add_time(self, *, encode_ms: float = 0.0, communicate_ms: float = 0.0, decode_ms: float = 0.0) -> None:
        """See StatsRecorder."""


class PartitionFigures(Figures):
    """Of rows in host memory (piece_rows.PartitionRow), at once. guard: looks at their residuals now and then."""

    def __init__(self, recorder: StatsRecorder, guard: ResidualGuard) -> None:
        self._recorder, self._guard = recorder, guard

    def start_step(self) -> None:
        """Do nothing."""

    def encoded(self, rows: Sequence[Any]) -> None:
        """See Figures."""
        partitions = [row.partition for row in rows]
        for row in rows:
            if row.encoded % GRADIENTS_PER_LOOK == 0:
                self._guard.look(row.partition)
        self._recorder.add_quantization(
            coordinates=sum(partition.coordinates for partition in partitions),
            clamped=sum(partition.clamped for partition in partitions),
            energy=sum(partition.energy for partition in partitions),
            # The engine measures it when somebody asks.
            lost_energy=0.0 if all(partition.residual_kept for partition in partitions) else None,
        )

    def read(self) -> None:
        """Do nothing."""

    def add_time(self, *, encode_ms: float = 0.0, communicate_ms: float = 0.0, decode_ms: float = 0.0) -> None:
        """See Figures."""
        self._recorder.add_time(encode_ms=encode_ms, communicate_ms=communicate_ms, decode_ms=decode_ms)
