"""Rounding points of rotated coordinates among ranks that decode (csrc/thc/nearest.h).

Rotated coordinates are about normal, and are divided by their root mean square first. Lloyd-Max points have the least
error for a standard normal: each is the centroid of its cell, and edges lie half way between neighbours (Lloyd, 1957;
Max, 1960).

All ranks rotate with the same signs. Similar gradients then have similar errors, which do not average out. Staggered
points tell ranks apart. The edges of rank i are shifted by (position(i) + .5) / n - .5 of a cell, times a spread. Cells
are equal in the domain of the compander Phi(x / sqrt(3)), and points are the centroids of the cells. Staggering costs 1
% of the error of unlike gradients with 5 bits, 2.5 % with 4 bits and more with fewer bits (SPREADS).
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.rounding import positions
from byteps_thc._scheme.tables.store import directory

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

POINT_BITS = range(1, 9)
#: The committed Lloyd-Max points, a line of JSON for each number of bits.
FILE_NAME = "points.jsonl"
#: Distance of ranks' edges, in cells, by bits: the least error over independent and correlated gradients.
SPREADS = {1: 0.0, 2: 0.0, 3: 0.5, 4: 1.0, 5: 1.0, 6: 1.0, 7: 1.0, 8: 1.0}

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


class Points(NamedTuple):
    """Code k stands for points[k], in units of the root mean square; its cell ends where edges[k] begins the next.

    edges: [2^bits - 1], points: [2^bits], ascending.
    """

    edges: F32
    points: F32

    @property
    def bits(self) -> int:
        return len(self.points).bit_length() - 1


@lru_cache
def lloyd_max(bits: int) -> Points:
    """Return the committed points of `bits`, 1 .. 8. Raises ConfigurationError for others."""
    points = _committed().get(bits)
    if points is None:
        raise ConfigurationError(f"bits must be in 1 .. {max(POINT_BITS)}, got {bits}")
    return Points(_halfway(points).astype(np.float32), points)


@lru_cache(maxsize=1024)
def staggered(bits: int, rank: int, ranks: int) -> Points:
    shift = SPREADS.get(bits, 0.0) * ((positions(ranks)[rank] + 0.5) / ranks - 0.5)
    if shift == 0:
        return lloyd_max(bits)
    lloyd_max(bits)  # raises for unsupported bits
    count = 1 << bits
    normal = NormalDist(sigma=math.sqrt(3))
    edges = np.array([normal.inv_cdf((cell + shift) / count) for cell in range(1, count)])
    return Points(edges.astype(np.float32), centroids(edges).astype(np.float32))


def solve(bits: int) -> F64:
    """Lloyd-Max points by Newton's method: points less the centroids of their cells are zero."""
    count = 1 << bits
    normal = NormalDist(sigma=math.sqrt(3))
    points = centroids(np.array([normal.inv_cdf(cell / count) for cell in range(1, count)]))
    for _ in range(50):
        edges = _halfway(points)
        found = centroids(edges)
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
    symmetric: F64 = (points - points[::-1]) / 2
    return symmetric


def centroids(edges: F64) -> F64:
    """Means of a standard normal within the cells between edges; the outermost cells have no end."""
    density = np.concatenate([[0.0], np.exp(-edges * edges / 2) / math.sqrt(2 * math.pi), [0.0]])
    means: F64 = -np.diff(density) / _mass(edges)
    return means


def quantization_error(points: Points) -> float:
    """Mean squared error of a standard normal, after the scale that makes codes unbiased: 1 / E[z c] - 1."""
    edges = points.edges.astype(np.float64)
    explained = float((centroids(edges) * points.points * _mass(edges)).sum())
    energy = float((np.square(points.points.astype(np.float64)) * _mass(edges)).sum())
    return energy / explained**2 - 1


def to_json(bits: int) -> str:
    """Return the line of FILE_NAME with the points of `bits`, in 9 digits, which distinguish all float32 numbers."""
    return json.dumps({"bits": bits, "points": [float(f"{point:.9g}") for point in solve(bits)]}) + "\n"


@lru_cache
def _committed() -> dict[int, F32]:
    lines = (json.loads(line) for line in (directory() / FILE_NAME).read_text().splitlines())
    return {line["bits"]: np.array(line["points"], np.float32) for line in lines}


def _halfway(points: npt.NDArray[np.floating]) -> F64:
    wide = points.astype(np.float64)
    between: F64 = (wide[1:] + wide[:-1]) / 2
    return between


def _mass(edges: F64) -> F64:
    """Probability of each cell; no digits are lost in the tails."""
    tails = _erfc(np.abs(edges) / math.sqrt(2)) / 2
    below, above = np.where(edges < 0, tails, 1 - tails), np.where(edges < 0, 1 - tails, tails)
    mass: F64 = np.diff(np.concatenate([[0.0], below, [1.0]]))
    upper = np.concatenate([[1.0], above, [0.0]])
    right = np.concatenate([[False], edges > 0])
    return np.where(right, upper[:-1] - upper[1:], mass)
