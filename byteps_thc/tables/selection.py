"""The choice of granularity and clamp for a number of workers (granularity = "auto").

The average of n workers errs by the quantization noise and by the clamping bias of each. Noise is independent, so
averaging divides its variance by n. Clamping hits the same coordinates with the same sign on workers with similar
gradients, so in the worst case averaging does not help at all:

    without error feedback   minimise  cost / n + clamp_cost,  and p <= 1/256 from 4 workers on
    with error feedback      minimise  cost     + clamp_cost

With error feedback neither term is lost: both go into the residual and are sent later. What matters is then how much
each worker's residual holds, which is the plain sum and does not depend on n. That repays the larger p.

A server or switch sends sums of 8 or 16 bits, whatever the granularity is. Where sums are packed into as many bits as
granularity * n needs, a smaller granularity saves bytes: then the fewest bits are chosen with which a table errs at
most 5 % more than the best one.
"""

from __future__ import annotations

from byteps_thc.errors import ConfigurationError
from byteps_thc.tables.lookup_table import LookupTable, check_parameters, solve_grid
from byteps_thc.tables.store import GRID_BITS, GRID_MAX_GRANULARITY, GRID_P, committed
from byteps_thc.wire.layout import MAX_WORKERS

#: Without error feedback, and from this many workers on, p is at most CLAMP_LIMIT_P.
CLAMP_LIMIT_WORKERS, CLAMP_LIMIT_P = 4, 1 / 256
#: By what factor the error may grow for the sake of packed sums.
PACKED_SUMS_ERROR = 1.05


def expected_error(table: LookupTable, workers: int, error_feedback: bool) -> float:
    """Return the criterion above, in units of the variance of a coordinate."""
    return table.cost / (1 if error_feedback else workers) + table.clamp_cost


def best_table(
    bits: int,
    workers: int,
    value_bits: int = 8,
    error_feedback: bool = True,
    *,
    granularity: int | None = None,
    p: float | None = None,
    packed_sums: bool = False,
) -> LookupTable:
    """Return the table of least expected_error() whose sums over `workers` fit `value_bits`.

    A granularity or p that is given is kept. packed_sums: an error up to PACKED_SUMS_ERROR times the least is as good
    when the sums need fewer bits. Candidates are the committed tables for bits 2, 3 and 4 when neither is,
    the identity tables for bits 1 and 8. ConfigurationError when not even the smallest granularity fits, or a parameter
    is out of range.
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise ConfigurationError(f"workers must be in 1 .. {MAX_WORKERS}, not {workers}")
    if value_bits not in (8, 16):
        raise ConfigurationError(f"value_bits must be 8 or 16, not {value_bits}")
    smallest = (1 << bits) - 1
    check_parameters(bits, granularity or smallest, p or GRID_P[0])
    largest = ((1 << value_bits) - 1) // workers
    if largest < (granularity or smallest):
        raise ConfigurationError(overflow_message(bits, granularity or smallest, workers, value_bits))
    limited = not error_feedback and workers >= CLAMP_LIMIT_WORKERS
    fractions = [p] if p else [value for value in GRID_P if value <= CLAMP_LIMIT_P or not limited]
    if granularity:
        candidates = solve_grid([bits], [granularity], fractions)
    elif p or bits not in GRID_BITS:
        candidates = solve_grid(
            [bits], range(smallest, max(smallest, min(GRID_MAX_GRANULARITY, largest)) + 1), fractions
        )
    else:
        candidates = [t for t in committed(bits) if t.granularity <= largest and t.p in fractions]
    errors = {table: expected_error(table, workers, error_feedback) for table in candidates}
    tolerated = min(errors.values()) * (PACKED_SUMS_ERROR if packed_sums else 1)
    good = [table for table, error in errors.items() if error <= tolerated]
    return min(good, key=lambda table: (packed_sums and (table.granularity * workers).bit_length(), errors[table]))


def overflow_message(bits: int, granularity: int, workers: int, value_bits: int) -> str:
    """Return what to do about a granularity * workers that does not fit value_bits."""
    largest = (1 << value_bits) - 1
    remedies = [f"use at most {largest // granularity} workers"]
    if largest // workers >= (1 << bits) - 1:
        remedies.append(f"granularity at most {largest // workers}")
    if value_bits < 16 and granularity * workers < 1 << 16:
        remedies.append("value_bits=16")
    return (
        f"granularity {granularity} * {workers} workers = {granularity * workers} does not fit {value_bits}-bit "
        f"aggregates (at most {largest}): {' or '.join(remedies)}"
    )
