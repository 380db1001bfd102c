"""The choice of granularity and clamp for a number of workers (granularity = "auto").

The criterion is the error of the average of n workers, from the quantization noise and the clamping of each:

- noise: cost / n with independent rounding, average_cost(n) / n with stratified (LookupTable.average_cost derives it);
- clamping: independent of the rounding mode. Workers' clamping errors count as independent, like gradient noise.

In units of the energy of the average of n independent gradients, which is 1 / n, both times n:

    with error feedback      minimise  (average_cost(n) + clamp_cost) / (1 - d),  d = cost + clamp_cost <= 0.9,
                             and p >= 1/64 up to 4 bits
    without error feedback   minimise  (average_cost(n) + clamp_cost - p^2) / (1 - p)^2

Without error feedback averages are divided by 1 - p, the share that clamping leaves (ResolvedConfig.decode_threshold):
with the coordinate z and its decoded value q before the division, E[(q / (1 - p) - z)^2] is minimised, as E[q z] = 1 -
p. The remaining clamping error is odd and has no linear part, so workers whose gradients have the cosine c share at
most c^3 of it (Mehler's formula): an eighth at .5. Tables chosen for workers that share all of it (c = 1; p of 1/512 to
1/1024 at 4 bits) have 8 / 12 / 38 % more error on independent gradients with 4 / 8 / 17 workers and 4 bits, 13 to 48 %
more with 2 bits, and 1.4 to 2.1 times as much with 1 bit. The choice above, for 17 workers and 4 bits, has 1.17 times
the error of the best p at c = .5, 1.6 times at .7 and 3.1 times at 1, where the error is a third of the error at 0;
with fewer workers less.

With error feedback a worker quantizes gradient + residual. Rotations are fresh every step, so the residual's energy R
adds to the gradient's, 1: R = d (1 + R), and all errors are 1 + R = 1 / (1 - d) times as large. A table with d >= 1
does not contract: the residual grows without end (1-bit codes with p <= 1/5). Tables with d > 0.9, whose residuals
would have the energy of 9 gradients and more, are not used.

The solver minimises one worker's cost for each (granularity, p). Tables solved for the average's cost (its shared part
is the square of a sum over intervals, so that a multiplier is searched around the same dynamic program) were tried for
4, 8 and 17 workers: the same tables at the granularities that are chosen here (14 to 17, 38), 0 to 3 % less elsewhere.

Many workers (up to limits.MAX_RANKS) are no special case: stratified rounding leaves about half of a worker's noise,
and all committed granularities fit 16 bits. Solved tables of 6 bits are coarser if the sums need it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.limits import MAX_RANKS
from byteps_thc._scheme.rounding import RoundingMode
from byteps_thc._scheme.tables.lookup_table import LookupTable, check_parameters, solve_grid
from byteps_thc._scheme.tables.store import GRID_BITS, GRID_MAX_GRANULARITY, GRID_P, committed

#: With error feedback, p of codes of up to 4 bits is at least this. If workers' gradients differ, the largest norm is
#: above a worker's coordinates: 1/128 has 1.5 % less error on normal vectors, but 3 to 7 % more on gradients of a GPT
#: and a CNN (evaluation/benchmarks.md, "Where the error comes from").
FEEDBACK_P, FEEDBACK_P_BITS = 1 / 64, 4
#: Granularities and p of widths without committed tables, which are solved on demand. 1 bit needs a low clamp to
#: contract. 6-bit sums of more than 4 workers have 16 bits anyway, and a grid three times as fine has a third less
#: error. 8 bits lose little by a high clamp.
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
