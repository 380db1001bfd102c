"""Points of ranks that decode: optimal, symmetric, and the committed ones are those that are solved here."""

import itertools

import numpy as np
import pytest

from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.tables import points as module
from byteps_thc._scheme.tables.points import POINT_BITS, lloyd_max, quantization_error, staggered

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


@pytest.mark.parametrize("bits", POINT_BITS)
def test_lloyd_max_points_are_a_fixed_point(bits):
    points = lloyd_max(bits)
    assert points.bits == bits
    edges, values = points.edges.astype(np.float64), points.points.astype(np.float64)
    np.testing.assert_allclose(integrated_centroids(edges), values, atol=1e-6)
    np.testing.assert_allclose((values[1:] + values[:-1]) / 2, edges, atol=1e-6)
    np.testing.assert_array_equal(values, -values[::-1])
    assert np.diff(values).min() > 0


@pytest.mark.parametrize("bits", KNOWN_ERRORS)
def test_lloyd_max_errors_are_the_known_ones(bits):
    relative = quantization_error(lloyd_max(bits))  # with the scale: mse / (1 - mse)
    assert relative / (1 + relative) == pytest.approx(KNOWN_ERRORS[bits], rel=3e-3)


def test_committed_points_are_the_solved_ones():
    text = (module.directory() / module.FILE_NAME).read_text()
    assert text.splitlines(keepends=True) == [module.to_json(bits) for bits in POINT_BITS]


@pytest.mark.parametrize("bits", POINT_BITS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
def test_staggered_points(bits, ranks):
    """Centroids of cells that are shifted, by as much up as down over all ranks."""
    spread = module.SPREADS[bits]
    every = [staggered(bits, rank, ranks) for rank in range(ranks)]
    for points in every:
        assert np.diff(points.edges).size == 0 or np.diff(points.edges).min() > 0
        assert np.diff(points.points).min() > 0
        # 2e-6: the outermost cells of 8 bits are one in 10^7
        np.testing.assert_allclose(integrated_centroids(points.edges.astype(np.float64)), points.points, atol=2e-6)
    mirrored = sorted((-points.edges[::-1]).tolist() for points in every)
    np.testing.assert_allclose(mirrored, sorted(points.edges.tolist() for points in every), atol=1e-6)
    assert len({points.edges.tobytes() for points in every}) == (ranks if spread > 0 else 1)
    if ranks == 1 or spread == 0:
        assert every[0] == lloyd_max(bits)


def test_staggering_costs_little():
    """Of the error of a rank: 8 % at most with 4 bits, 4 % with 5 and more."""
    for bits, most in ((3, 1.08), (4, 1.08), (5, 1.04), (8, 1.04)):
        error = np.mean([quantization_error(staggered(bits, rank, 8)) for rank in range(8)])
        assert 1 < error / quantization_error(lloyd_max(bits)) < most


@pytest.mark.parametrize("bits", [0, 9])
def test_other_widths_are_refused(bits):
    for points in (lambda: lloyd_max(bits), lambda: staggered(bits, 0, 4)):
        with pytest.raises(ConfigurationError, match=f"bits must be in 1 .. 8, got {bits}"):
            points()
