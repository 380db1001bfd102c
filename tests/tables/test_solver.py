"""The dynamic program against the paper's enumeration and against numbers known beforehand."""

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._scheme.adding.tables import LookupTable, solve_grid
from byteps_thc._scheme.adding.tables.solver import clamp_cost, interval_costs, threshold


def stars_and_bars(granularity: int, bits: int) -> list[tuple[int, ...]]:
    """All tables 0 = T[0] < ... < T[2^bits - 1] = g, as the paper's appendix enumerates them, without symmetry."""
    inner = itertools.combinations(range(1, granularity), (1 << bits) - 2)
    return [(0, *values, granularity) for values in inner]


def numeric_cost(values: tuple[int, ...], p: float, points: int = 200_001) -> float:
    """Integral of the variance of stochastic quantization times phi, by the trapezoidal rule."""
    t = threshold(p)
    grid = t * (2 * np.array(values) / values[-1] - 1)
    x = np.linspace(-t, t, points)
    z = np.clip(np.searchsorted(grid, x, side="right") - 1, 0, len(grid) - 2)
    y = (x - grid[z]) * (grid[z + 1] - x) * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return float(np.trapezoid(y, x))


@pytest.mark.parametrize("p", [1 / 16, 1 / 32, 1 / 1024])
@pytest.mark.parametrize(("bits", "granularity"), [(1, 5), (2, 3), (2, 4), (2, 16), (2, 51), (3, 7), (3, 12), (4, 18)])
def test_no_table_is_cheaper(bits, granularity, p):
    costs = interval_costs(granularity, [p])[0]
    every = np.array(stars_and_bars(granularity, bits))
    cheapest = costs[every[:, :-1], every[:, 1:]].sum(axis=1).min()
    table = LookupTable.solve(bits, granularity, p)
    assert table.cost == pytest.approx(cheapest, rel=1e-14)
    assert costs[table.values[:-1], table.values[1:]].sum() == pytest.approx(cheapest, rel=1e-14)


@pytest.mark.parametrize(("granularity", "cost"), [(15, 1.332e-2), (17, 1.253e-2), (30, 1.306e-2)])
def test_known_costs(granularity, cost):
    assert f"{LookupTable.solve(4, granularity, 1 / 32).cost:.3e}" == f"{cost:.3e}"


@given(bits=st.sampled_from([1, 2, 3, 4]), extra=st.integers(0, 40), p=st.floats(1e-4, 0.5))
@settings(max_examples=25, deadline=None)
def test_cost_is_the_integral_of_the_variance(bits, extra, p):
    table = LookupTable.solve(bits, (1 << bits) - 1 + extra, p)
    assert table.cost == pytest.approx(numeric_cost(table.values, p), rel=1e-5)


def test_even_granularity_has_an_asymmetric_optimum():
    table = LookupTable.solve(4, 16, 1 / 32)
    mirrored = tuple(16 - value for value in reversed(table.values))
    assert table.values != mirrored
    assert table.values < mirrored  # of the two, the lexicographically smaller
    symmetric = np.array([*range(8), *range(9, 17)])  # the only one with 16 of the 17 points
    costs = interval_costs(16, [1 / 32])[0]
    assert costs[symmetric[:-1], symmetric[1:]].sum() > 1.4 * table.cost


def test_odd_granularity_has_a_symmetric_optimum():
    values = LookupTable.solve(4, 31, 1 / 32).values
    assert values == tuple(31 - value for value in reversed(values))


@pytest.mark.parametrize("p", [1 / 16, 1 / 256])
def test_clamp_cost_is_the_integral_of_the_excess(p):
    x = np.linspace(threshold(p), 12, 2_000_001)
    excess = np.trapezoid((x - threshold(p)) ** 2 * np.exp(-x * x / 2) / math.sqrt(2 * math.pi), x)
    assert clamp_cost(p) == pytest.approx(2 * excess, rel=1e-6)


@pytest.mark.parametrize(
    "table",
    [LookupTable.paper(), LookupTable.uniform(1, 1 / 2), LookupTable.solve(2, 45, 1 / 8), LookupTable.uniform(8)],
)
def test_shared_variance_is_that_of_what_equal_rounding_bits_share(table):
    """By its definition, over a million normal coordinates; equal gaps and a flat density would give half the cost."""
    x = np.random.default_rng(1).standard_normal(1 << 20)
    x = x[np.abs(x) <= table.threshold]
    values = np.array([value * 2 * table.threshold / table.granularity - table.threshold for value in table.values])
    z = np.clip(np.searchsorted(values, x, side="right") - 1, 0, len(values) - 2)
    gap = np.diff(values)[z]
    fraction = (x - values[z]) / gap
    numbers = (np.arange(64) + 0.5) / 64
    shared = np.array([(gap * ((number < fraction) - fraction)).sum() for number in numbers]) / (1 << 20)
    assert table.shared_variance == pytest.approx(np.var(shared), rel=0.01)
    assert 0.25 * table.cost < table.shared_variance <= 0.5 * table.cost
    assert table.average_cost(1) == table.average_cost(5, "independent") == table.cost
    assert table.average_cost(4) == table.cost - 0.75 * table.shared_variance


def test_the_whole_grid_takes_seconds_and_equals_single_solutions():
    fractions = np.geomspace(1 / 16, 1 / 1024, 31).tolist()
    start = time.process_time()
    tables = solve_grid([2, 3, 4], range(3, 52), fractions)
    assert time.process_time() - start < 10
    assert len(tables) == 31 * (49 + 45 + 37)
    for table in tables[::173]:
        assert table == LookupTable.solve(table.bits, table.granularity, table.p)


def test_parameters_are_checked():
    for bits, granularity, p, message in [
        (9, 600, 0.1, "bits must be one of 1, 2, 3, 4, 5, 6, 7, 8, not 9"),
        (4, 0, 0.1, "granularity must be in 1..65535, not 0"),
        (4, 70000, 0.1, "granularity must be in 1..65535, not 70000"),
        (4, 3000, 0.1, "granularity 3000 is too fine to solve for: use at most 2047"),
        (4, 30, 0.0, "must be between 0 and 1, not 0.0"),
        (4, 30, 1.0, "must be between 0 and 1, not 1.0"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            LookupTable.solve(bits, granularity, p)
