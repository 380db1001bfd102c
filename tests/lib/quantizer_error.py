"""How far an average of independent normal gradients may be from the exact one."""

from __future__ import annotations

import math

from byteps_thc import ThcConfig

#: E[max] of n independent standard normal variables.
_LARGEST_OF = {1: 0.0, 2: 0.5642, 3: 0.8463, 4: 1.0294}
#: Of a test that compares some hundred parameters.
_STANDARD_DEVIATIONS = 5


def expected_nmse(config: ThcConfig, workers: int, *, packed_sums: bool = False, one_worker: bool = False) -> float:
    """Return the expected squared error of an average, relative to the average's energy; the first step's.

    packed_sums: of the collective engine. one_worker: of what one of the workers sent, not of their average.

    The table's cost and clamp_cost are those of a coordinate, in units of its variance, of a worker whose block has the
    largest norm: the quantizer's steps are in units of that norm. Squared norms of blocks of D standard normal
    coordinates have mean D and standard deviation sqrt(2 D), so that the largest of `workers` is larger than the mean
    by that much. Workers' gradients are independent, and what is left of their errors as average_cost() says: averaging
    divides the energy of both by the number of workers. Padding in a block makes the error smaller.
    """
    table = config.resolve(workers, packed_sums=packed_sums).table
    largest_norm = 1 + _LARGEST_OF[workers] * math.sqrt(2 / config.rotation_block)
    averaged = 1 if one_worker else workers
    error = table.average_cost(averaged, config.rounding) * largest_norm + table.clamp_cost
    return error if config.keeps_residuals else (error - table.p**2) / (1 - table.p) ** 2  # selection.py


def nmse_limit(
    config: ThcConfig, workers: int, elements: int, *, packed_sums: bool = False, one_worker: bool = False
) -> float:
    """Return what the NMSE of a parameter exceeds never in practice: some standard deviations above the mean.

    The energies of error and average are sums over the elements, of about normal squares: each has a relative standard
    deviation of sqrt(2 / elements).
    """
    expected = expected_nmse(config, workers, packed_sums=packed_sums, one_worker=one_worker)
    return expected * (1 + _STANDARD_DEVIATIONS * math.sqrt(4 / elements))
