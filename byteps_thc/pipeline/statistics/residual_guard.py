"""Does error feedback work? What is lost must be less than what was quantized, or it grows without end."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from byteps_thc.arrays import F32, energy_of
from byteps_thc.pipeline.memory import HOST, Memory

#: Gradients of a partition between two looks at its residual. A look reads the residual once more, about a tenth of the
#: time of encoding.
GRADIENTS_PER_LOOK = 16
#: What counts as growth: chance takes some tables that contract a little above 1.
OUTGROWN = 1.1

_logger = logging.getLogger("byteps_thc")


class LookedAt(Protocol):
    """What a look is at; see compressor.Partition. residual: where the guard's memory is."""

    name: str
    residual: Any
    max_norms: F32
    residual_kept: bool


class ResidualGuard:
    """Warns once, on the logger "byteps_thc", when a residual has outgrown what it was made of at two looks in a row.

    Compared are |residual|^2 after quantization and the energy of the maximum norms, those of gradient + residual on
    the worker where they are largest. The table promises a ratio of cost + clamp_cost, which ThcConfig.resolve() keeps
    below 1. Coordinates that are far from normal after the rotation may break that promise: a residual as large as
    gradient and residual were together is larger than the gradient, and larger again after the next one.

    memory: where the residuals lie.
    """

    def __init__(self, memory: Memory[Any] = HOST) -> None:
        self._memory = memory
        self._warned = False
        self._outgrown = False  # at the last look

    def look(self, partition: LookedAt) -> None:
        """Check a partition that was just encoded."""
        if self._warned or partition.residual is None or not partition.residual_kept:
            return
        lost = self._memory.energy(partition.residual)
        quantized = energy_of(partition.max_norms)
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
