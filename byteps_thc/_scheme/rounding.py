"""Random bits of each worker's rounding.

A coordinate between two table values is rounded up if its fraction of the way is above a random number in [0, 1): 16
bits, u, that Philox draws for (seed, tensor, round, coordinate) in a domain, plus a phase, modulo 2^16. For any phase
the bits are uniform, so that every worker's rounding is unbiased on its own, and so is the average of any workers (a
quorum, or the workers whose packets arrived).

    independent   worker i draws in domain 1 + i. The errors of n workers average to 1 / n of one's variance.
    stratified    all workers draw the same u, and worker i adds the phase position(i) / n: together they round with n
                  numbers that are spread evenly over [0, 1), not with n that may fall together. This is systematic
                  sampling (Madow & Madow, 1944) with the workers as strata: if fractions are uniform and independent
                  of each other, the average's error is (n + 1) / (2 n) as large (tables/selection.py derives it); if
                  they are equal, 1 / n.

Errors of two workers cancel best half a turn apart. Workers of one host have neighbouring numbers and may see similar
data, and some may be missing from a sum: position(i) is the rank of i among 0 .. n - 1 sorted by their reversed bits
(van der Corput's sequence), so that workers 2 k and 2 k + 1 are about half a turn apart, 4 k .. 4 k + 3 about a
quarter, and so on.
"""

from __future__ import annotations

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
    def of(cls, mode: RoundingMode, worker: int, workers: int) -> Rounding:
        if mode == "independent":
            return cls(_FIRST_DOMAIN + worker, 0)
        return cls(_FIRST_DOMAIN, positions(workers)[worker] * _TURN // workers)


@lru_cache
def positions(workers: int) -> tuple[int, ...]:
    """Return the rank of every worker among all, sorted by their numbers' bits in reverse."""
    bits = (workers - 1).bit_length()
    order = sorted(range(workers), key=lambda worker: f"{worker:0{bits}b}"[::-1])
    return tuple(sorted(range(workers), key=order.__getitem__))
