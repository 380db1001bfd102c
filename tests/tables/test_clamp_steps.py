"""The model that moves the clamp: against integrals, limits, and where its steps lie."""

import numpy as np
import pytest

from byteps_thc.tables import LookupTable
from byteps_thc.tables.clamp_steps import HALVINGS, clamp_steps, shared_clamp_cost
from byteps_thc.tables.solver import clamp_cost, points_cost, threshold


@pytest.mark.parametrize("p", [1 / 2, 1 / 8, 1 / 64, 1 / 512])
def test_what_two_workers_lose_in_common(p):
    """From nothing to all; a product rule in two dimensions in between."""
    assert shared_clamp_cost(p, 0.0) == pytest.approx(0, abs=1e-12)
    assert shared_clamp_cost(p, 1.0) == clamp_cost(p)
    assert shared_clamp_cost(p, 1 - 1e-6) == pytest.approx(clamp_cost(p), rel=2e-2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(180)
    x, own = nodes[:, None], nodes
    y = 0.7 * x + (1 - 0.7**2) ** 0.5 * own
    t = threshold(p)
    lost = [v - np.clip(v, -t, t) for v in (x, y)]
    wanted = (weights[:, None] * weights * lost[0] * lost[1]).sum() / (2 * np.pi)
    assert shared_clamp_cost(p, 0.7) == pytest.approx(wanted, rel=2e-2)


@pytest.mark.parametrize("bits", [1, 2, 4, 6])
def test_cost_of_points_is_the_table_s(bits):
    table = LookupTable.solve(bits, (1 << bits) + 3, 1 / 32)
    points = [table.threshold * (2 * value / table.granularity - 1) for value in table.values]
    assert points_cost(points) == pytest.approx(table.cost, rel=1e-12)


def test_steps_rise_and_come_earlier_for_many_workers():
    table = LookupTable.solve(4, 15, 1 / 64)
    before = (2.0, 2.0, 2.0)
    for workers in (4, 8, 17, 64):
        steps = clamp_steps(table, workers, "stratified")
        agreements, factors = steps.energies, steps.factors
        assert 1 <= len(agreements) == len(factors) <= HALVINGS
        assert list(agreements) == sorted(set(agreements))
        assert list(factors) == sorted(set(factors))
        assert factors[0] == pytest.approx(threshold(1 / 128) / table.threshold)
        assert 1 / workers < agreements[0] < before[0]
        assert agreements[-1] <= 1
        before = agreements
    assert not clamp_steps(table, 1, "stratified")


def test_tables_that_would_not_contract_are_left_alone():
    """With one bit, p below 1/5 leaves more in the residual than there was."""
    assert not clamp_steps(LookupTable.solve(1, 1, 1 / 4), 17, "independent")
