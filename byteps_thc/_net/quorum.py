"""How many workers complete a sum."""

from __future__ import annotations

import math
import numbers
from fractions import Fraction

from byteps_thc._scheme.errors import ConfigurationError

#: A number of workers, a share of them (0.9, the paper's 90 %), or None for all.
Quorum = int | float | None


def resolve_quorum(quorum: Quorum, workers: int) -> int:
    """Return the number of workers, 1 .. workers, that complete a sum.

    quorum: that number, a share above 0 and below 1 of the workers, which is rounded up (0.9 of 12 are 11), or None for
    all. ConfigurationError for anything else.
    """
    if quorum is None:
        return workers
    if isinstance(quorum, numbers.Integral) and not isinstance(quorum, bool):
        if 1 <= quorum <= workers:
            return int(quorum)
        raise ConfigurationError(f"quorum {quorum} is not in 1 .. {workers}, the number of workers")
    if isinstance(quorum, numbers.Real) and not isinstance(quorum, bool) and 0 < quorum < 1:
        # What is written, not the nearest binary fraction: 0.07 of 100 are 7, and 0.07 * 100 is a little more.
        return math.ceil(Fraction(repr(float(quorum))) * workers)
    raise ConfigurationError(
        f"quorum is {quorum!r}: give a number of workers (9), or a share of them below 1 (0.9, which is 90 %)"
    )
