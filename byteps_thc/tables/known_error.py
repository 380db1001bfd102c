"""What stratified rounding is known to err by, from the random bits alone.

A coordinate x between two table values goes up where its fraction of the way is above a uniform v. Whoever knows v but
not x expects the error h(v) = E[table value - x | v], x being normal: about a line, from half a mean gap at v = 0 to
minus that at v = 1 (solver.shared_variance has the derivation). All workers know the numbers v + phase_i that everybody
rounds with, so that they subtract

    sum_i h(v + phase_i)      from the sum of all workers' table values, in decode()
    h(v + phase_i)            from what a worker has sent, before its residual is made

Nothing else travels: this is subtractive dither (Roberts, 1962) for the part of the dither that workers share. E h = 0,
so averages stay unbiased whatever the gradients are; that they are about normal only decides how much is gained. The
residuals' sum is then what the average has lost, as it has to be.

Phases are spread evenly, so the sum has a period of 2^16 / n: it is a function of (n v) mod 2^16. Both functions are
lines on each of 16 pieces: the least squares of h and of the sum, so that their means stay 0. What they leave is below
1e-3 of a mean gap for codes of 2 bits and more (tests/tables/test_known_error.py).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.polynomial import legendre

from byteps_thc.tables.lookup_table import LookupTable
from byteps_thc.tables.solver import F64, shared_errors

F32 = npt.NDArray[np.float32]

#: Pieces of a function of 16 random bits, as csrc/thc/known_error.h has them.
PIECES = 16
_BITS = 1 << 16
#: Degree that h is interpolated with between its nodes, and nodes of a piece.
_DEGREE, _NODES = 31, 6


class KnownErrors(NamedTuple):
    """Functions of 16 random bits r in units of table steps: entry[0, r >> 12] + entry[1, r >> 12] * (r + 0.5).

    own: of a worker's rounding bits. sum: of (v * workers) mod 2^16, v being the bits that all workers' phases are
    added to; for the sum of all workers' table values. float32[2, 16] each, read-only.
    """

    own: F32
    sum: F32


@lru_cache
def known_errors(table: LookupTable, workers: int) -> KnownErrors:
    """Return what decode() and encode() subtract for a table and that many workers."""
    step = 2 * table.threshold / table.granularity
    points = [value * step - table.threshold for value in table.values[: table.levels]]
    nodes, weights = legendre.leggauss(_DEGREE + 1)
    errors = shared_errors(points, (nodes + 1) / 2) / step
    # The coefficients of a Legendre series are integrals, exact with these nodes; that of degree 0 is the mean.
    degrees = np.arange(_DEGREE + 1)
    series = (legendre.legvander(nodes, _DEGREE) * weights[:, None]).T @ errors * (2 * degrees + 1) / 2
    series[0] = 0.0
    shift = (math.gcd(workers, _BITS) - 1) / 2  # v * workers is a multiple of this gcd, and so is not spread evenly
    return KnownErrors(_pieces(series, 1, 0.0), _pieces(series, workers, shift))


def _pieces(series: F64, workers: int, shift: float) -> F32:
    """Fit lines to the sum over k < workers of the series at (w + k) / workers, w in [0, 1)."""
    nodes, weights = legendre.leggauss(_NODES)
    places = (np.arange(PIECES)[:, None] + (nodes + 1) / 2) / PIECES
    values = legendre.legval(2 * (places[:, :, None] + np.arange(workers)) / workers - 1, series).sum(axis=2)
    half = _BITS / PIECES / 2
    centre = (2 * np.arange(PIECES) + 1) * half
    slope = 1.5 * (values * nodes) @ weights / half
    offset = values @ weights / 2 - slope * (centre - shift)
    entries = np.array([offset, slope], np.float32)
    entries.flags.writeable = False
    return entries
