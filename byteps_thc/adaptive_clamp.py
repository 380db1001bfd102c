"""The clamp of a partition moves out where averages say that the workers' gradients agree (ThcConfig.adaptive_clamp).

Workers are clamped to a multiple of the largest of their norms, the one thing that all of them know for certain. So a
worker that wants a wider clamp sends larger norms: its own times a factor. Whatever others want, all have the same
maximum, codes of one meaning and sums that are right; the largest factor counts, or nearly. Who has nothing to say (it
has come late, its packet was lost, the shard is another's) sends its norms as they are.

What a worker chooses by is its own: the energy of the average in that of its gradient and residual says how often p
should be halved (tables/clamp_steps.py), and the coordinates that it has clamped how often it is already. That is more
than its factor says where norms differ: most workers are farther within the largest one's clamp.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from byteps_thc import _core
from byteps_thc.arrays import F32, U64, Gradient
from byteps_thc.tables.clamp_steps import ClampSteps

#: Rounds from one look to the next, the first one being a partition's first round. A look takes half of decode's time.
ROUNDS_PER_LOOK = 8


def least_clamped(steps: ClampSteps, coordinates: int) -> list[int]:
    """Return what 2^(halvings now + halvings wanted) times the clamped coordinates must reach for 1, 2, ... halvings.

    p 2^-x of the coordinates being clamped now, wanted - (x - now) halvings make it p 2^-wanted; rounded to the next.
    """
    return [math.ceil(steps.p * coordinates * 2.0 ** (halvings - 0.5)) for halvings in range(1, len(steps.factors) + 1)]


class AdaptiveClamp:
    """The factor of the norms of one partition, in host memory; gpu/adaptive_clamp.py has those of a device's.

    measured: float32[blocks], norms as they are, which widen() makes those that travel of.
    """

    def __init__(
        self, steps: ClampSteps, *, blocks: int, coordinates: int, rotation_block: int, ends: U64 | None = None
    ) -> None:
        self._steps, self._least = steps, least_clamped(steps, coordinates)
        self._round, self._step, self._next = -1, 0, 0
        self.measured: F32 = np.zeros(blocks, np.float32)
        self._rotation_block, self._ends = rotation_block, ends
        self._averages: F32 = np.zeros(blocks, np.float32)

    @property
    def energy(self) -> float:
        """|gradient + residual|^2."""
        return _energy(self.measured)

    def widen(self, norms: F32) -> None:
        """Begin a round: write the norms that were measured, times the factor that the last average was worth."""
        self._round += 1
        self._step = self._next
        factor = np.float32(self._steps.factors[self._step - 1] if self._step else 1)
        with np.errstate(over="ignore"):
            np.multiply(self.measured, factor, out=norms)

    def look(self, average: Gradient, clamped: int, pool: Any) -> None:
        """Choose the factor of the next round, if it is time. What is not finite, or lost, gives 1.

        clamped: coordinates, of this round.
        """
        if self._round % ROUNDS_PER_LOOK:
            return
        blocks: dict[str, Any] = {"rotation_block": self._rotation_block, "ends": self._ends}
        _core.block_norms(average, None, self._averages, pool=pool, **blocks)
        agreeing, energy = _energy(self._averages), self.energy
        wanted = sum(agreeing > least * energy for least in self._steps.energies)
        reached = clamped << (self._step + wanted)
        self._next = sum(reached >= least for least in self._least[:wanted])


def _energy(norms: F32) -> float:
    return float(np.square(norms, dtype=np.float64).sum())
