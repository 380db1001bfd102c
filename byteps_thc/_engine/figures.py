"""What quantization did to the gradients of a step, for statistics. Does error feedback work?"""

from __future__ import annotations

import logging
from collections import Counter

from torch import Tensor

from byteps_thc._engine.device.staged_compressor import StagedPartition
from byteps_thc._engine.residuals import energy_of
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._scheme.arrays import energy_of as norms_energy
from byteps_thc._scheme.compressor import Partition

#: Gradients of a partition between two looks at its residual. A look reads the residual once more, about a tenth of the
#: time of encoding.
_GRADIENTS_PER_LOOK = 16
#: What counts as growth: chance takes some tables that contract a little above 1.
OUTGROWN = 1.1

_logger = logging.getLogger("byteps_thc")


class PartitionFigures:
    """Reports partitions (compressor.Partition) to a recorder, and looks at their residuals now and then.

    It warns once, on the logger "byteps_thc", when a residual has outgrown what it was made of at two looks in a row.
    Compared are |residual|^2 after quantization and the energy of the maximum norms, those of gradient + residual on
    the worker where they are largest. The table promises a ratio of cost + clamp_cost, which ThcConfig.resolve() keeps
    below 1. Coordinates that are far from normal after the rotation may break that promise: a residual as large as
    gradient and residual were together is larger than the gradient, and larger again after the next one.
    """

    def __init__(self, recorder: StatsRecorder) -> None:
        self.recorder = recorder
        self._encoded: Counter[str] = Counter()
        self._warned = False
        self._outgrown = False  # at the last look

    def encoded(self, partition: Partition | StagedPartition, residual: Tensor | None) -> None:
        """Note a partition that was encoded."""
        self._encoded[partition.name] += 1
        if residual is not None and self._encoded[partition.name] % _GRADIENTS_PER_LOOK == 0:
            self.look(partition, residual)
        self.recorder.add_quantization(
            coordinates=partition.coordinates,
            clamped=partition.clamped,
            energy=partition.energy,
            # The engine measures it when somebody asks.
            lost_energy=0.0 if partition.residual_kept else None,
        )

    def look(self, partition: Partition | StagedPartition, residual: Tensor) -> None:
        """Check the residual of a partition that was just encoded."""
        if self._warned or not partition.residual_kept:
            return
        lost, quantized = energy_of(residual), norms_energy(partition.max_norms)
        before, self._outgrown = self._outgrown, lost > OUTGROWN * quantized
        if before and self._outgrown:
            self._warned = True
            _logger.warning(
                "the residual of %r has %.3g times the energy of gradient and residual before it was quantized: error "
                "feedback diverges, and training will. Use more bits, or error_feedback=False; leave p and "
                "rotation_block at their defaults",
                partition.name,
                lost / quantized if quantized else float("inf"),
            )
