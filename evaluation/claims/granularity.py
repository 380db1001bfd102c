"""How the error falls with granularity and bits (paper, Figure 15)."""

import statistics
from collections.abc import Mapping
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from averages.alternatives import gradients
from averages.schemes import nmse, packaged
from pages.claim import Check, Claim, Plot, Result, Series, Table
from trainings.train import mean_and_spread, spread

from byteps_thc import ServerCodes
from byteps_thc._scheme.adding.tables import LookupTable

WORKERS, P = 10, 1 / 1024
BITS: tuple[Literal[2, 3, 4], ...] = (2, 3, 4)
LARGEST = 51
COORDINATES = 1 << 15
#: bits -> (granularity, NMSE x 1e-3), expected within TOLERANCE.
EXPECTED = {2: (10, 64.8), 3: (20, 10.4), 4: (30, 2.55)}
TOLERANCE = 0.05
#: A step up by less is noise: several times the spread of a ratio of two means over the repetitions.
NOISE = 0.01
#: "About": within a factor of two.
TENFOLD, ABOUT = 10, 2
SHOWN = (3, 4, 7, 8, 10, 15, 16, 20, 25, 30, 31, 36, 40, 45, 51)

Errors = Mapping[int, Mapping[int, list[float]]]


class Rise(NamedTuple):
    """A step of granularity, to `to`, that makes the error larger: times `measured`, and times `computed`."""

    to: int
    measured: float
    computed: float


def config(bits: Literal[2, 3, 4], granularity: int) -> ServerCodes:
    """The paper's rounding and sums.

    Feedback is off: it has no use in one step, and diverges with some tables of 2 bits. Averages are thus divided by 1
    - p, which changes errors by .2 % at most.
    """
    return ServerCodes(bits=bits, granularity=granularity, p=P, rounding="independent", error_feedback=False)


def computed(bits: int, granularity: int) -> float:
    """NMSE of copies: rounding errors are independent, clamping errors the same on all (tables/selection.py)."""
    table = LookupTable.solve(bits, granularity, P)
    return (table.cost / WORKERS + table.clamp_cost - P**2) / (1 - P) ** 2


def errors_of(granularities: Mapping[int, range], repetitions: int) -> dict[int, dict[int, list[float]]]:
    """NMSE by bits, granularity and repetition, each of another vector."""
    vectors = [gradients("copies", 1, np.random.default_rng([15, i]), COORDINATES) for i in range(repetitions)]
    found: dict[int, dict[int, list[float]]] = {}
    for bits in BITS:
        found[bits] = {}
        for granularity in granularities[bits]:
            run = packaged(config(bits, granularity), [slice(0, vectors[0].shape[1])])
            found[bits][granularity] = [
                nmse(run(one.repeat(WORKERS, axis=0), np.random.default_rng([15, i]))[0], one[0])
                for i, one in enumerate(vectors)
            ]
    return found


def rises(errors: Mapping[int, list[float]], bits: int) -> list[Rise]:
    """Steps to the next granularity that err more, beyond noise."""
    found = []
    for before, after in pairwise(sorted(errors)):
        ratio = statistics.mean(errors[after]) / statistics.mean(errors[before])
        if after == before + 1 and ratio > 1 + NOISE:
            found.append(Rise(after, ratio, computed(bits, after) / computed(bits, before)))
    return found


def expected_checks(errors: Errors) -> list[Check]:
    """The points of EXPECTED."""
    checks = []
    for bits, (granularity, wanted) in EXPECTED.items():
        own = errors[bits][granularity]
        error = 1e3 * statistics.mean(own)
        checks.append(
            Check(
                f"NMSE x 1e-3, {bits} bits, g = {granularity}",
                f"{wanted} ± {TOLERANCE:.0%}",
                mean_and_spread([1e3 * one for one in own], 2),
                abs(error / wanted - 1) <= TOLERANCE,
                f"computed from the table and the clamp: {1e3 * computed(bits, granularity):.2f}",
            )
        )
    return checks


def monotone_check(errors: Errors) -> Check:
    """Whether a larger granularity ever has a larger error."""
    up = {bits: rises(errors[bits], bits) for bits in BITS}
    worst = {bits: max(found, key=lambda rise: rise.measured) for bits, found in up.items() if found}
    all_up = [rise for found in up.values() for rise in found]
    steps = "; ".join(
        f"{bits} bits: {len(up[bits])} of {len(errors[bits]) - 1} steps rise, most to g = {rise.to}, "
        f"by {rise.measured - 1:.0%} (computed: {rise.computed - 1:.0%})"
        for bits, rise in worst.items()
    )
    return Check(
        "error falls with every step of granularity",
        f"no step rises by more than {NOISE:.0%}, the noise",
        steps or "none rises",
        not worst,
        f"a grid with one more step does not contain the grid before. The exact costs of the best tables rise, too, at "
        f"{sum(rise.computed > 1 for rise in all_up)} of {len(all_up)} such steps: the cause is neither noise nor the "
        "search",
    )


def multiples_check(errors: Errors) -> Check:
    """The error falls as the granularity doubles, because the finer grid has all points of the coarser."""
    ratios = [
        statistics.mean(own[2 * g]) / statistics.mean(own[g]) for own in errors.values() for g in own if 2 * g in own
    ]
    return Check(
        "error falls if granularity is doubled",
        f"all {len(ratios)} pairs (g, 2 g) of the same bits, within {NOISE:.0%}",
        f"{sum(ratio <= 1 + NOISE for ratio in ratios)} pairs; NMSE at 2 g is {min(ratios):.2f}x to {max(ratios):.2f}x "
        "the NMSE at g",
        max(ratios) <= 1 + NOISE,
    )


def tenfold_check(errors: Errors) -> Check:
    """The gain of a bit at the largest granularity."""
    last = [statistics.mean(errors[bits][LARGEST]) for bits in BITS]
    gains = [before / after for before, after in pairwise(last)]
    return Check(
        f"one more bit divides the error, at g = {LARGEST}",
        f"by about {TENFOLD}, within a factor of {ABOUT}",
        " and ".join(f"by {gain:.1f} ({bits} bits)" for gain, bits in zip(gains, BITS[1:], strict=True)),
        all(TENFOLD / ABOUT <= gain <= TENFOLD * ABOUT for gain in gains),
        "a table has 2^b - 1 gaps between values. If all gaps were equal, a bit would divide squared errors by "
        + " and ".join(f"{(((1 << b) - 1) / ((1 << (b - 1)) - 1)) ** 2:.1f}" for b in BITS[1:])
        + ". Computed from the best tables: "
        + " and ".join(f"{computed(b - 1, LARGEST) / computed(b, LARGEST):.1f}" for b in BITS[1:]),
    )


def cleared(check: Check) -> Check:
    """Drop the reason of a check that holds."""
    return Check(check.what, check.expected, check.got, check.met) if check.met else check


def table(errors: Errors) -> Table:
    """Some granularities, measured and computed."""
    cells = [["g", *(f"{bits} bits, {what}" for bits in BITS for what in ("measured", "computed"))]]
    for granularity in SHOWN:
        row = [str(granularity)]
        for bits in BITS:
            own = [1e3 * one for one in errors[bits].get(granularity, [])]
            row += [mean_and_spread(own, 3), f"{1e3 * computed(bits, granularity):.3f}"] if own else ["", ""]
        if any(row[1:]):
            cells.append(row)
    return Table(f"NMSE x 1e-3 of the average of {WORKERS} copies, p = 1/1024", cells)


def measure(quick: bool) -> Result:
    repetitions = 5 if quick else 100
    granularities = {bits: range((1 << bits) - 1, LARGEST + 1) for bits in BITS}
    errors = errors_of(granularities, repetitions)
    checks = [*expected_checks(errors), monotone_check(errors), multiples_check(errors), tenfold_check(errors)]
    series = [
        Series(f"THC, {bits} bits", list(map(float, own)), list(map(statistics.mean, own.values())))
        for bits, own in errors.items()
    ]
    plot = Plot(
        "granularity",
        f"Error by granularity, {WORKERS} copies of a lognormal vector",
        "granularity g (steps of the grid)",
        "NMSE of the average",
        series,
        y_axis="log",
    )
    data = {
        f"{bits} bits, NMSE and spread from g = {min(own)} on": " ".join(
            f"{statistics.mean(e):.4g}±{spread(e):.1g}" for e in own.values()
        )
        for bits, own in errors.items()
    }
    return Result([cleared(check) for check in checks], [table(errors)], [plot], data)


CLAIM = Claim(
    name="granularity",
    title="Granularity and bits",
    figure="15",
    paper="about 10 times less error a bit; error falls with granularity",
    stand_in="Nothing: the figure is a computation. The paper does not give the length of its vectors (here 32,768 "
    "coordinates in rotation blocks of 8,192) and their signs (here random).",
    minutes=6,
    measure=measure,
)
