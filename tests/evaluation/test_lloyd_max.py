"""Points of EDEN and DRIVE are optimal and symmetric, with the errors that are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from averages.lloyd_max import lloyd_max, quantization_error

#: Mean squared errors of Lloyd-Max quantizers of a standard normal (Max, 1960; Jayant and Noll, 1984, table 4.8).
KNOWN_ERRORS = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497, 5: 0.002499}


def integrated_centroids(edges: np.ndarray) -> np.ndarray:
    """Means of a standard normal between edges, by Simpson's rule on a fine grid, -12 .. 12."""
    ends = np.concatenate([[-12.0], edges, [12.0]])
    means = []
    for a, b in itertools.pairwise(ends):
        x = np.linspace(a, b, 4001)
        density = np.exp(-x * x / 2)
        weights = np.ones(x.size)
        weights[1:-1:2], weights[2:-1:2] = 4, 2
        means.append((weights * x * density).sum() / (weights * density).sum())
    return np.array(means)


@pytest.mark.parametrize("bits", range(1, 9))
def test_points_are_a_fixed_point(bits: int) -> None:
    edges, points = lloyd_max(bits)
    assert len(points) == 1 << bits
    np.testing.assert_allclose(integrated_centroids(edges), points, atol=1e-6)
    np.testing.assert_array_equal(points, -points[::-1])
    assert np.diff(points).min() > 0


@pytest.mark.parametrize("bits", KNOWN_ERRORS)
def test_errors_are_the_known_ones(bits: int) -> None:
    assert quantization_error(lloyd_max(bits)) == pytest.approx(KNOWN_ERRORS[bits], rel=3e-3)
