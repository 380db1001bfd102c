"""Lloyd-Max points of a standard normal (Lloyd, 1957, Max, 1960), to which DRIVE and EDEN round.

Each point is the centroid of its cell, and edges lie half way between neighbours.
"""

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from averages.quantizers import F64

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


class Points(NamedTuple):
    """Code k stands for points[k], and edges[k] ends its cell. edges: [2^bits - 1], points: [2^bits], ascending."""

    edges: F64
    points: F64


@lru_cache
def lloyd_max(bits: int) -> Points:
    """Solve for points of so many bits by Newton's method: points less the centroids of their cells are zero."""
    count = 1 << bits
    normal = NormalDist(sigma=math.sqrt(3))
    points = _centroids(np.array([normal.inv_cdf(cell / count) for cell in range(1, count)]))
    for _ in range(50):
        edges = (points[1:] + points[:-1]) / 2
        found = _centroids(edges)
        missing = points - found
        if np.abs(missing).max() < 1e-13:
            break
        # An edge moves by half of its points' moves; a centroid by density / mass times its distance to the edge.
        mass = _mass(edges)
        density = np.exp(-edges * edges / 2) / math.sqrt(2 * math.pi)
        upper = 0.5 * density * (edges - found[:-1]) / mass[:-1]
        lower = 0.5 * density * (found[1:] - edges) / mass[1:]
        slopes = np.eye(count) - np.diag(np.append(upper, 0) + np.append(0, lower))
        slopes -= np.diag(upper, 1) + np.diag(lower, -1)
        points = points - np.linalg.solve(slopes, missing)
    symmetric = (points - points[::-1]) / 2
    return Points((symmetric[1:] + symmetric[:-1]) / 2, symmetric)


def quantization_error(points: Points) -> float:
    """Mean squared error of a standard normal."""
    energy = float((np.square(points.points) * _mass(points.edges)).sum())
    explained = float((_centroids(points.edges) * points.points * _mass(points.edges)).sum())
    return 1 - 2 * explained + energy


def _centroids(edges: F64) -> F64:
    """Means of a standard normal within the cells between edges; the outermost cells have no end."""
    density = np.concatenate([[0.0], np.exp(-edges * edges / 2) / math.sqrt(2 * math.pi), [0.0]])
    means: F64 = -np.diff(density) / _mass(edges)
    return means


def _mass(edges: F64) -> F64:
    """Probability of each cell; no digits are lost in the tails."""
    tails = _erfc(np.abs(edges) / math.sqrt(2)) / 2
    below, above = np.where(edges < 0, tails, 1 - tails), np.where(edges < 0, 1 - tails, tails)
    mass: F64 = np.diff(np.concatenate([[0.0], below, [1.0]]))
    upper = np.concatenate([[1.0], above, [0.0]])
    right = np.concatenate([[False], edges > 0])
    return np.where(right, upper[:-1] - upper[1:], mass)
