"""The choice of granularity and clamp for a number of workers (granularity = "auto").

What counts is the error of the average of n workers. It errs by the quantization noise and by the clamping of each:

- noise: cost / n with independent rounding, average_cost(n) / n with stratified (LookupTable.average_cost derives it);
- clamping is no matter of rounding, so neither mode makes it smaller. Workers' clamping errors are taken to be
  independent, as their gradients' noise is.

In units of the energy that the average of n independent gradients has, which is 1 / n, both times n:

    with error feedback      minimise  (average_cost(n) + clamp_cost) / (1 - d),  d = cost + clamp_cost <= 0.9,
                             and p >= 1/64 up to 4 bits
    without error feedback   minimise  (average_cost(n) + clamp_cost - p^2) / (1 - p)^2

Without error feedback averages are divided by 1 - p, which clamping leaves of them (ResolvedConfig.decode_threshold):
with z the coordinate and q the decoded one before that, E[(q / (1 - p) - z)^2] is what is minimised, as E[q z] = 1 - p.
What is left of clamping then is odd and has no linear part, so workers whose gradients have the cosine c share c^3 of
it at most (Mehler's formula): an eighth at .5. Tables chosen for workers that share all of it (c = 1, which was the
criterion before; p of 1/512 to 1/1024 at 4 bits) err 8 / 12 / 38 % more on independent gradients with 4 / 8 / 17
workers and 4 bits, 13 to 48 % more with 2 bits, and 1.4 to 2.1 times as much with 1 bit. The choice above, of 17
workers and 4 bits, errs 1.17 times as much as the best p at c = .5, 1.6 times at .7 and 3.1 times at 1, where the error
is a third of what it is at 0; with fewer workers less than that.

With error feedback a worker quantizes gradient + residual. Rotations are fresh every step, so the residual's energy R
adds to the gradient's, 1: R = d (1 + R), and all errors are 1 + R = 1 / (1 - d) times as large. A table with d >= 1
does not contract: the residual grows without end (1-bit codes with p <= 1/5). Tables with d > 0.9, whose residuals
would have the energy of 9 gradients and more, are not taken.

The solver minimises one worker's cost for each (granularity, p). Tables solved for the average's cost (its shared part
is the square of a sum over intervals, so that a multiplier is searched around the same dynamic program) were tried for
4, 8 and 17 workers: the same tables at the granularities that are chosen here (14 to 17, 38), 0 to 3 % less elsewhere.

Of many workers (up to limits.MAX_RANKS) nothing is special: stratified rounding leaves about half of a worker's
noise, and all committed granularities fit 16 bits. What is solved for 6 bits is coarser where the sums need it.
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

#: With error feedback, p of codes of up to 4 bits is at least this. Where workers' gradients are not alike, the largest
#: norm says more than a worker's coordinates have: 1/128 errs 1.5 % less on normal vectors, but 3 to 7 % more on
#: gradients of a GPT and a CNN (evaluation/benchmarks.md, "Where the error comes from").
FEEDBACK_P, FEEDBACK_P_BITS = 1 / 64, 4
#: Granularities and p of widths without committed tables, which are solved when they are wanted. 1 bit needs a low
#: clamp to contract. 6-bit sums of more than 4 workers have 16 bits anyway, and a grid three times as fine errs a third
#: less. 8 bits lose little by a high clamp.
SOLVED_GRANULARITIES = {1: (1,), 6: (63, 126, 189), 7: (127, 254), 8: (255,)}
SOLVED_P = {
    1: tuple(1 / (1 << k) for k in range(1, 11)),
    6: tuple(1 / (1 << k) for k in range(8, 14)),
    7: tuple(1 / (1 << k) for k in range(10, 17)),
    8: tuple(1 / (1 << k) for k in range(10, 15)),
}
#: With error feedback: the most of a gradient's energy that a table may leave to the residual.
MOST_LOST = 0.9


def expected_error(
    table: LookupTable, workers: int, error_feedback: bool, rounding: RoundingMode = "stratified"
) -> float:
    """Return the criterion above, in units of the average's energy; infinity where feedback diverges."""
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

    A granularity or p that is given is kept. Where neither is: the committed tables, and for 1 and 6 to 8 bits those of
    SOLVED_GRANULARITIES. Where no granularity that needs all codes fits: the largest that does, which errs least.
    ConfigurationError when not even 1 fits, or a parameter is bad.
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
    """Return the p to choose from."""
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

    ConfigurationError as candidates(), and when error feedback diverges with all of them.
    """
    tables = candidates(bits, workers, value_bits, error_feedback, granularity=granularity, p=p)
    errors = {table: expected_error(table, workers, error_feedback, rounding) for table in tables}
    if min(errors.values()) == math.inf:
        raise ConfigurationError(diverges_message(tables))
    return min(errors, key=errors.__getitem__)


def diverges_message(tables: Sequence[LookupTable]) -> str:
    """Return what to do about tables none of which contracts."""
    table = min(tables, key=lambda table: table.cost + table.clamp_cost)
    lost = table.cost + table.clamp_cost
    end = "without end" if lost >= 1 else f"to {lost / (1 - lost):.0f} times the gradient's energy"
    return (
        f"{table.bits}-bit codes with granularity {table.granularity} and p = {table.p:.4g} lose {lost:.2f} times the "
        f"energy of a gradient, which error feedback would add to the next: residuals would grow {end}. Use "
        'p="auto", another p, more bits, or error_feedback=False'
    )


def overflow_message(granularity: int, workers: int, value_bits: int) -> str:
    """Return what to do about a granularity * workers that does not fit value_bits."""
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
