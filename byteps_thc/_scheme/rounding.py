"""Random bits of each worker's rounding (docs/contributors/protocol.md, "Rounding").

    independent   worker i draws in domain 1 + i. The errors of n workers average to 1 / n of one's variance.
    stratified    all workers draw the same bits, and worker i adds the phase position(i) / n: systematic sampling
                  (Madow & Madow, 1944) with the workers as strata. LookupTable.average_cost() has the error.

Errors of two workers cancel best half a turn apart. Workers of one host have neighbouring numbers and may see similar
data. position(i) therefore sorts workers by their reversed bits (van der Corput's sequence): 2 k and 2 k + 1 are about
half a turn apart, 4 k .. 4 k + 3 about a quarter, even if other workers are missing from a sum.
"""

from functools import lru_cache
from typing import Literal, NamedTuple

RoundingMode = Literal["stratified", "independent"]

#: of the signs of averages, among ranks that decode; kDownSignDomain of philox.h
DOWN_SIGN_DOMAIN = 0xFFFFFFFE
_FIRST_DOMAIN = 1  # 0 is the domain of the signs
_TURN = 1 << 16


class Rounding(NamedTuple):
    """For kernels: the Philox domain of the random bits (32 bits), and the phase added to them (16 bits)."""

    domain: int
    phase: int

    @classmethod
    def of(cls, mode: RoundingMode, worker: int, workers: int) -> "Rounding":
        if mode == "independent":
            return cls(_FIRST_DOMAIN + worker, 0)
        return cls(_FIRST_DOMAIN, positions(workers)[worker] * _TURN // workers)


@lru_cache
def positions(workers: int) -> tuple[int, ...]:
    """Return the rank of every worker among all, sorted by their numbers' bits in reverse."""
    bits = (workers - 1).bit_length()
    order = sorted(range(workers), key=lambda worker: f"{worker:0{bits}b}"[::-1])
    return tuple(sorted(range(workers), key=order.__getitem__))
