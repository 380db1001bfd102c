"""The choice of granularity and clamp for a number of workers (granularity = "auto").

The criterion is n times the error of the average of n workers with independent gradients of energy 1:

    with error feedback      (average_cost(n) + clamp_cost) / (1 - d),  d = cost + clamp_cost, the share of a gradient's
                             energy that is left to the residual
    without error feedback   (average_cost(n) + clamp_cost - p^2) / (1 - p)^2, as averages are divided by 1 - p

With error feedback, fresh rotations add the residual's energy R to the gradient's: R = d (1 + R), so all errors are
1 / (1 - d) times as large, and with d >= 1 residuals grow without end. docs/contributors/algorithm.md, "Choice of
tables", has workers with similar gradients.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.limits import MAX_RANKS
from byteps_thc._scheme.adding.tables.lookup_table import LookupTable, check_parameters, solve_grid
from byteps_thc._scheme.adding.tables.store import GRID_BITS, GRID_MAX_GRANULARITY, GRID_P, committed
from byteps_thc._scheme.rounding import RoundingMode

#: With error feedback, p of codes of up to 4 bits is at least this: 1/128 has 3 to 7 % more error on real gradients.
FEEDBACK_P, FEEDBACK_P_BITS = 1 / 64, 4
#: Granularities and p of widths without committed tables, which are solved on demand. 1 bit needs a low clamp to
#: contract. Sums of 6 bits have 16 bits with more than 4 workers, which leaves room for a finer grid.
SOLVED_GRANULARITIES = {1: (1,), 6: (63, 126, 189), 7: (127, 254), 8: (255,)}
SOLVED_P = {
    1: tuple(1 / (1 << k) for k in range(1, 11)),
    6: tuple(1 / (1 << k) for k in range(8, 14)),
    7: tuple(1 / (1 << k) for k in range(10, 17)),
    8: tuple(1 / (1 << k) for k in range(10, 15)),
}
#: With error feedback: largest share of a gradient's energy that a table may leave to the residual.
MOST_LOST = 0.9


def expected_error(
    table: LookupTable, workers: int, error_feedback: bool, rounding: RoundingMode = "stratified"
) -> float:
    """Return the criterion above, in units of the average's energy; infinity if feedback diverges."""
    noise = table.average_cost(workers, rounding)
    if not error_feedback:
        return (noise + table.clamp_cost - table.p**2) / (1 - table.p) ** 2
    lost = table.cost + table.clamp_cost
    return (noise + table.clamp_cost) / (1 - lost) if lost <= MOST_LOST else math.inf


@lru_cache
def candidates(
    bits: int,
    workers: int,
    value_bits: int = 8,
    error_feedback: bool = False,
    *,
    granularity: int | None = None,
    p: float | None = None,
) -> tuple[LookupTable, ...]:
    """Return the tables to choose from, whose sums over `workers` fit `value_bits`.

    A given granularity or p is kept. Without both: the committed tables, and for 1 and 6 to 8 bits
    SOLVED_GRANULARITIES. If no granularity that needs all codes fits: the largest that does, with the least error.
    Raises ConfigurationError if not even 1 fits, or a parameter is bad.
    """
    if not 1 <= workers <= MAX_RANKS:
        raise ConfigurationError(f"workers must be in 1 .. {MAX_RANKS}, not {workers}")
    if value_bits not in (8, 16):
        raise ConfigurationError(f"value_bits must be 8 or 16, not {value_bits}")
    smallest = (1 << bits) - 1
    check_parameters(bits, granularity or smallest, p or GRID_P[0])
    largest = ((1 << value_bits) - 1) // workers
    if largest < (granularity or 1):
        raise ConfigurationError(overflow_message(granularity or 1, workers, value_bits))
    fractions = [p] if p else _fractions(bits, error_feedback)
    if granularity is None and largest < smallest:
        granularity = largest
    if granularity:
        return tuple(LookupTable.solve(bits, granularity, fraction) for fraction in fractions)
    if bits not in GRID_BITS:
        return tuple(solve_grid([bits], [g for g in SOLVED_GRANULARITIES[bits] if g <= largest], fractions))
    if p:
        return tuple(solve_grid([bits], range(smallest, min(GRID_MAX_GRANULARITY, largest) + 1), fractions))
    return tuple(table for table in committed(bits) if table.granularity <= largest and table.p in fractions)


def _fractions(bits: int, error_feedback: bool) -> list[float]:
    grid = SOLVED_P.get(bits, GRID_P)
    return [p for p in grid if p >= FEEDBACK_P or bits > FEEDBACK_P_BITS or not error_feedback]


def best_table(
    bits: int,
    workers: int,
    value_bits: int = 8,
    error_feedback: bool = False,
    *,
    granularity: int | None = None,
    p: float | None = None,
    rounding: RoundingMode = "stratified",
) -> LookupTable:
    """Return the candidate of least expected_error().

    Raises ConfigurationError as candidates() does, and if error feedback diverges with all of them.
    """
    tables = candidates(bits, workers, value_bits, error_feedback, granularity=granularity, p=p)
    errors = {table: expected_error(table, workers, error_feedback, rounding) for table in tables}
    if min(errors.values()) == math.inf:
        raise ConfigurationError(diverges_message(tables))
    return min(errors, key=errors.__getitem__)


def diverges_message(tables: Sequence[LookupTable]) -> str:
    table = min(tables, key=lambda table: table.cost + table.clamp_cost)
    lost = table.cost + table.clamp_cost
    end = "without end" if lost >= 1 else f"to {lost / (1 - lost):.0f} times the gradient's energy"
    return (
        f"{table.bits}-bit codes with granularity {table.granularity} and p = {table.p:.4g} lose {lost:.2f} times the "
        f"energy of a gradient, which error feedback would add to the next: residuals would grow {end}. Use "
        'p="auto", another p, more bits, or error_feedback=False'
    )


def overflow_message(granularity: int, workers: int, value_bits: int) -> str:
    largest = (1 << value_bits) - 1
    remedies = [f"use at most {largest // granularity} workers"] if granularity <= largest else []
    if largest >= workers:
        remedies.append(f"granularity at most {largest // workers}")
    if value_bits < 16 and granularity * workers < 1 << 16:
        remedies.append("value_bits=16")
    if not remedies:
        remedies.append("use fewer workers and a smaller granularity")
    return (
        f"granularity {granularity} * {workers} workers = {granularity * workers} does not fit {value_bits}-bit "
        f"aggregates (at most {largest}): {' or '.join(remedies)}"
    )
