"""Optimal lookup tables by dynamic programming (paper, section 5.2 and appendix on the lookup table).

The cost is a sum over intervals between neighbouring values, so the paper's optimum is a shortest path with 2^b - 1
edges from 0 to g: O(2^b g^2). Symmetry is not assumed: for even g the best table is not symmetric.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

#: Costs closer than this count as equal: rounding (1e-15) must not choose between mirrored tables; others differ more.
TIE = 1e-12

#: Gauss-Legendre nodes in [0, 1] and weights: the integrand of shared_variance() is smooth, 16 give ten digits.
_NODES, _WEIGHTS = (np.polynomial.legendre.leggauss(16)[0] + 1) / 2, np.polynomial.legendre.leggauss(16)[1] / 2

_erf = np.vectorize(math.erf, otypes=[np.float64])


def threshold(p: float) -> float:
    """t_p = Phi^-1(1 - p/2): a standard normal lies outside [-t_p, t_p] with probability p (section 5.2)."""
    return -NormalDist().inv_cdf(p / 2)


def clamp_cost(p: float) -> float:
    """E[(|x| - t_p)^2 ; |x| > t_p] of a standard normal x: the squared error of clamping to [-t_p, t_p]."""
    t = threshold(p)
    density = math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    return (1 + t * t) * p - 2 * t * density


def interval_costs(granularity: int, p: Sequence[float]) -> F64:
    """Expected squared error of stochastic quantization between two grid points, for several p at once.

    Returns costs[k, i, j] = integral of (x - a)(b - x) phi(x) over [a, b], a and b being the i-th and j-th of the g + 1
    equidistant points of [-t_p, t_p]; infinity unless i < j. Shape [len(p), g + 1, g + 1]. phi is not divided by its
    mass in [-t_p, t_p], so costs of different p are comparable.
    """
    t = np.array([threshold(value) for value in p])[:, None]
    x = t * (2 * np.arange(granularity + 1) / granularity - 1)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    # Half of erf instead of Phi: symmetric around 0, so no digits are lost in the right tail.
    half_erf = 0.5 * _erf(x / math.sqrt(2))
    a, b = x[:, :, None], x[:, None, :]
    mass = half_erf[:, None, :] - half_erf[:, :, None]
    # integral of x phi is phi(a) - phi(b), of x^2 phi it is mass + a phi(a) - b phi(b); the rest cancels.
    costs: F64 = b * density[:, :, None] - a * density[:, None, :] - (a * b + 1) * mass
    costs[:, np.tri(granularity + 1, dtype=bool)] = np.inf
    return costs


def shared_variance(points: Sequence[float]) -> float:
    """Variance of h(v) = E[quantized - x | v], with the uniform number v that x is rounded with.

    points: quantization values in units of the norm, ascending. x is standard normal; clamping adds nothing. In an
    interval [a, b] x goes up if x > a + v (b - a), so h(v) is the sum over the intervals of
    (b - a) (Phi(b) - Phi(a + v (b - a))), less its mean. If all gaps are equal, the variance is half of the cost.
    """
    ends = np.array(points)
    gaps = np.diff(ends)
    cuts = ends[:-1] + _NODES[:, None] * gaps
    errors = -0.5 * (gaps * _erf(cuts / math.sqrt(2))).sum(axis=1)  # h(v) without terms that do not depend on v
    return float(_WEIGHTS @ np.square(errors - _WEIGHTS @ errors))


def optimal_values(costs: F64, steps: Sequence[int]) -> dict[int, tuple[I64, F64]]:
    """Cheapest paths from 0 to g with exactly s edges, for every s of `steps`, several p at once.

    costs: [P, g + 1, g + 1] from interval_costs. Returns s -> (values[P, s + 1], cost[P]). One pass serves all s. Of
    equally cheap paths (mirror images) the lexicographically smallest is taken, the same on every machine.
    """
    granularity = costs.shape[1] - 1
    to_go = np.full((len(costs), granularity + 1), np.inf)
    to_go[:, granularity] = 0.0
    remaining = [to_go]  # remaining[s][k, i]: cheapest way from i to g in s edges
    for _ in range(max((s for s in steps if s < granularity), default=0)):
        remaining.append((costs + remaining[-1][:, None, :]).min(axis=2))
    found = {s: (_cheapest_path(costs, remaining, s), remaining[s][:, 0]) for s in steps if s < granularity}
    if granularity in steps:  # the only such path visits every point
        identity = np.tile(np.arange(granularity + 1), (len(costs), 1))
        found[granularity] = identity, np.trace(costs, offset=1, axis1=1, axis2=2)
    return found


def _cheapest_path(costs: F64, remaining: list[F64], steps: int) -> I64:
    tables = np.arange(len(costs))
    values = np.zeros((len(costs), steps + 1), dtype=np.int64)
    for step in range(steps):
        through = costs[tables, values[:, step]] + remaining[steps - step - 1]
        values[:, step + 1] = (through <= through.min(axis=1, keepdims=True) + TIE).argmax(axis=1)
    return values
