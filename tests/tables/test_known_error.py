"""What stratified rounding is known to err by: lines that fit it, whose means are 0 and whose sum is the workers'."""

import math

import numpy as np
import pytest
import reference

from byteps_thc.rounding import Rounding
from byteps_thc.tables import LookupTable
from byteps_thc.tables.known_error import known_errors
from byteps_thc.tables.solver import shared_errors

TURN = 1 << 16
NUMBERS = np.arange(TURN)
TABLES = [LookupTable.solve(2, 9, 1 / 8), LookupTable.solve(4, 38, 1 / 64), LookupTable.solve(8, 255, 1 / 4096)]
COARSE = [LookupTable.solve(1, 1, 1 / 2), LookupTable.solve(3, 1, 1 / 8)]


def exact(table: LookupTable) -> np.ndarray:
    """h at every 16-bit number, in table steps, between 4096 of them that are computed."""
    step = 2 * table.threshold / table.granularity
    points = [value * step - table.threshold for value in table.values[: table.levels]]
    knots = (np.arange(4096) + 0.5) / 4096
    errors = shared_errors(points, knots) / step
    return np.interp((NUMBERS + 0.5) / TURN, knots, errors - errors.mean())


def mean_gap(table: LookupTable) -> float:
    """What h falls by from 0 to 1: the gaps' mean, weighted by density."""
    return float(exact(table)[0] - exact(table)[-1])


def at(entries: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    return reference.known_error(entries, numbers.astype(np.uint16)).astype(np.float64)


@pytest.mark.parametrize("table", TABLES + COARSE, ids=lambda table: f"{table.bits}-{table.granularity}")
@pytest.mark.parametrize("workers", [1, 2, 3, 8, 17, 100])
def test_lines_fit_what_is_known(table, workers):
    h, gap = exact(table), mean_gap(table)
    own, of_sum = known_errors(table, workers)
    phases = [Rounding.of("stratified", worker, workers).phase for worker in range(workers)]
    shifted = [(NUMBERS + phase) % TURN for phase in phases]
    together = sum(h[numbers] for numbers in shifted)
    mine, sums = at(own, NUMBERS), at(of_sum, NUMBERS * workers)
    assert np.abs(mine - h).max() < 1e-3 * gap
    assert np.abs(sums - together).max() < 1e-3 * gap
    # What all residuals leave out together is what decoding takes back.
    assert (sum(at(own, numbers) for numbers in shifted) - sums).std() < (1e-3 if table in TABLES else 5e-3) * gap
    assert abs(mine.mean()) < 1e-7 * gap
    assert abs(sums.mean()) < 1e-7 * gap


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.bits}-{table.granularity}")
def test_its_variance_is_the_shared_part_of_the_cost(table):
    step = 2 * table.threshold / table.granularity
    assert at(known_errors(table, 1).own, NUMBERS).var() * step**2 == pytest.approx(table.shared_variance, rel=1e-4)


def test_a_flat_table_errs_by_half_a_gap_less_the_number():
    """h(v) = gap (1/2 - v) where the density is flat: 8 bits of equal gaps, but for the clamped tails."""
    own = known_errors(LookupTable.uniform(8, 1 / 4096), 1).own
    assert np.abs(at(own, NUMBERS) - (0.5 - (NUMBERS + 0.5) / TURN)).max() < 1e-3


def test_entries_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        known_errors(TABLES[1], 4).sum[0, 0] = math.pi
