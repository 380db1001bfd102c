"""How far the clamp moves out where the gradients of workers agree (ThcConfig.adaptive_clamp).

What is clamped, error feedback returns. But meanwhile it is missing, and where gradients are alike all workers clamp
the same coordinates: averaging makes rounding errors smaller, and clamping errors not. The more gradients agree, the
less p should be. The table stays, only its points are spread over more.

Of n workers with coordinates of correlation r, the average of the quantized has

    (average_cost(n) + clamp_cost + (n - 1) shared(r)) / (1 - d) / n,     d = cost + clamp_cost

as in selection.py, all with the table's points at the threshold that p stands for; shared(r) is what the clamping
errors of two workers have in common, E[e(x) e(y)]. An average has the energy a = (1 + (n - 1) r) / n then, in that of
a gradient. With every halving of p from the table's the clamp is wider by a factor, and it is better from some a on.

A step is taken where it errs WORTH less than the one before, so that nothing is lost where gradients do not agree, or
are not as normal as they are taken to be here. r goes up to 1 in RESOLUTION parts.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from byteps_thc.rounding import RoundingMode
from byteps_thc.tables import solver
from byteps_thc.tables.lookup_table import LookupTable


class ClampSteps(NamedTuple):
    """Halvings of p, of which those count whose energy is reached; all false where there are none.

    p: of the table. energies: a, from which on the first, second, ... halving is worth while. factors: of the clamp.
    """

    p: float
    energies: tuple[float, ...]
    factors: tuple[float, ...]

    def __bool__(self) -> bool:
        return bool(self.factors)


HALVINGS, WORTH, RESOLUTION = 3, 0.05, 16
#: Places of the integral of shared(): the interval behind the clamp that matters, by the trapezoid rule.
_BEYOND, _PLACES = 6.0, 301


@lru_cache
def clamp_steps(table: LookupTable, workers: int, rounding: RoundingMode) -> ClampSteps:
    """Return the steps for a table and that many workers; none for one worker, who has nobody to agree with."""
    if workers == 1:
        return ClampSteps(table.p, (), ())
    correlations = np.arange(RESOLUTION + 1) / RESOLUTION
    ladder = [table.p / 2**halving for halving in range(HALVINGS + 1)]
    errors = [[_error(table, p, workers, rounding, float(r)) for r in correlations] for p in ladder]
    energies, factors = [], []
    for p, (before, after) in zip(ladder[1:], pairwise(errors), strict=True):
        better = [r for r, was, is_ in zip(correlations, before, after, strict=True) if is_ < (1 - WORTH) * was]
        if not better:
            break
        energies.append((1 + (workers - 1) * float(better[0])) / workers)
        factors.append(float(np.float32(solver.threshold(p) / table.threshold)))
    return ClampSteps(table.p, tuple(energies), tuple(factors))


def _error(table: LookupTable, p: float, workers: int, rounding: RoundingMode, correlation: float) -> float:
    """Return the error above, of the table's points spread over the threshold of p; infinity where d > 1."""
    points = [solver.threshold(p) * (2 * value / table.granularity - 1) for value in table.values[: table.levels]]
    cost = solver.points_cost(points)
    noise = cost if rounding == "independent" else cost - (1 - 1 / workers) * solver.shared_variance(points)
    lost = cost + solver.clamp_cost(p)
    if lost >= 1:
        return math.inf
    clamped = solver.clamp_cost(p) + (workers - 1) * shared_clamp_cost(p, correlation)
    return (noise + clamped) / (1 - lost)


def shared_clamp_cost(p: float, correlation: float) -> float:
    """E[e(x) e(y)], e(x) being what clamping takes of a standard normal x; correlation: of x and y, 0 .. 1."""
    t = solver.threshold(p)
    if correlation == 1:
        return solver.clamp_cost(p)
    x = np.linspace(t, t + _BEYOND, _PLACES)
    deviation = math.sqrt(1 - correlation * correlation)
    expected = solver.excess(correlation * x, deviation, t) - solver.excess(-correlation * x, deviation, t)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return float(2 * np.trapezoid((x - t) * density * expected, x))
