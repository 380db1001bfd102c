"""All ways to average that error_by_scheme compares, and the winner within a number of bits.

Each is a first step, without state of an earlier one. DGC is thus TopK here, as momentum has nothing to add yet.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from baselines import Dgc, Qsgd, SignSgd, TernGrad, TopK

from averages.alternatives import IF_ALIKE, PAIRS, TwoHops, alternatives
from averages.averagers import BF16, Scheme, make
from averages.eden import Eden
from averages.quantizers import F64, Integers, Smoothed
from averages.ranks import RankCodes
from byteps_thc import ServerCodes
from byteps_thc._base.settings import Settings
from byteps_thc._scheme.adding.tables import CODE_BITS

#: float64[workers, coordinates] -> the average, and bits of a coordinate, up and down.
Run = Callable[[F64, np.random.Generator], tuple[F64, float]]
SWITCH_SUM = 255
#: Bits up and down of ranks that decode.
RANKS_PAIRS = ((1, 1), (2, 2), *PAIRS, *IF_ALIKE)


@dataclass(frozen=True)
class Way:
    """A scheme with its settings. family: a line of a plot, with a colour of evaluation/pages/style.py."""

    name: str
    family: str
    run: Run


@dataclass(frozen=True)
class Point:
    """A scheme's bits and its error."""

    name: str
    family: str
    bits: float
    nmse: float


def nmse(average: F64, exact: F64) -> float:
    """|average - exact|^2 / |exact|^2."""
    return float(np.square(average - exact).sum() / np.square(exact).sum())


def winner(points: Sequence[Point], bits: float) -> Point | None:
    """The point with the least error at no more bits; None if all take more."""
    return min((point for point in points if point.bits <= bits), key=lambda point: point.nmse, default=None)


def undominated(points: Sequence[Point]) -> list[Point]:
    """Points with a smaller error than all at as many or fewer bits, by bits."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.bits, point.nmse)):
        if not kept or point.nmse < kept[-1].nmse:
            kept.append(point)
    return kept


def points(ways: Sequence[Way], own: F64, seed: Sequence[int]) -> list[Point]:
    """Average float64[workers, coordinates] in all ways."""
    exact, found = own.mean(axis=0), []
    for number, way in enumerate(ways):
        average, bits = way.run(own, np.random.default_rng([*seed, number]))
        found.append(Point(way.name, way.family, bits, nmse(average, exact)))
    return found


def ways(workers: int, tensors: Sequence[slice]) -> list[Way]:
    """All ways. tensors: of a gradient, one after the other."""
    return [*thc_ways(workers, tensors), *eden_ways(tensors), *baseline_ways(tensors), *two_hops_ways()]


def thc_ways(workers: int, tensors: Sequence[slice]) -> Iterator[Way]:
    """Paper and default, ranks with all bits, and servers or a switch that add in 8 and 16 bits.

    A switch takes codes of 4 bits and 32 workers; other cases model a server that adds like one. Codes whose additional
    bit buys no level, because 8 bits do not hold more, are skipped.
    """
    yield Way("THC, paper", "THC, paper", packaged(ServerCodes.paper(), tensors))
    yield Way("Uniform THC", "Uniform THC", packaged(ServerCodes.uniform(), tensors))
    for up, down in RANKS_PAIRS:
        scheme = RankCodes(up, down)
        name = "THC, default" if scheme == RankCodes() else f"THC, {up} + {down}"
        yield Way(name, "THC, default and other bits", packaged(scheme, tensors))
    for bits in CODE_BITS[1:]:
        server = ServerCodes(bits=bits, value_bits=16)
        yield Way(f"THC, 16-bit sums, {bits} bits", "THC, 16-bit sums", packaged(server, tensors))
        if bits == 2 or min(1 << bits, SWITCH_SUM // workers + 1) > 1 << (bits - 1):
            switch = ServerCodes(bits=bits, value_bits=8)
            yield Way(f"THC, switch, {bits} bits", "THC, switch", packaged(switch, tensors))


def eden_ways(tensors: Sequence[slice]) -> Iterator[Way]:
    """EDEN (Vargaftik et al., ICML 2022) both ways, a rotation for each rank; with one bit DRIVE (NeurIPS 2021)."""
    for up, down in RANKS_PAIRS:
        family = "DRIVE" if up == 1 else "EDEN"
        yield Way(f"{family} {up} + {down}", family, packaged(Eden(up, down), tensors))


def baseline_ways(tensors: Sequence[slice]) -> Iterator[Way]:
    """The codecs of baselines, through a server that decodes all, averages and encodes anew."""
    yield Way("bf16", "bf16", packaged(BF16, tensors))
    yield Way("TopK 10 %", "TopK", packaged(TopK(ratio=0.1), tensors))
    yield Way("DGC 10 %", "DGC", packaged(Dgc(ratio=0.1), tensors))
    yield Way("TernGrad", "TernGrad", packaged(TernGrad(), tensors))
    yield Way("TernGrad, no clamp", "TernGrad", packaged(TernGrad(clip=None), tensors))
    for bits in (2, 4, 8):
        yield Way(f"QSGD {bits} + {bits}", "QSGD", packaged(Qsgd(bits=bits), tensors))
    yield Way("SignSGD, scaled", "SignSGD", packaged(SignSgd(), tensors))
    majority = packaged(SignSgd(variant="majority"), tensors)
    yield Way("SignSGD, majority, best scale", "SignSGD", best_scaled(majority))


def two_hops_ways() -> Iterator[Way]:
    """alternatives.py's ways, and more widths, so that each family has some at most numbers of bits."""
    found = alternatives()
    found["int8 + int8, groups of 64"] = TwoHops(Integers(8, 64), Integers(8, 64))
    smoothed = Smoothed(Integers(4, 128))
    found["SDP4Bit-like 4 + 4, groups of 128"] = TwoHops(smoothed, smoothed)
    families = ("QSGD", "MXFP", "NVFP4", "correlated int", "SDP4Bit-like", "int")
    for name, scheme in found.items():
        family = next(family for family in families if name.startswith(family))
        yield Way(name, family, hops(scheme))


def hops(scheme: TwoHops) -> Run:
    """Two hops, as ranks have them."""
    return lambda own, random: (scheme.average(own, random), scheme.bits_up + scheme.bits_down)


def packaged(scheme: Scheme, tensors: Sequence[slice]) -> Run:
    """The package's average, with another seed each time."""

    def run(own: F64, random: np.random.Generator) -> tuple[F64, float]:
        averager = make(with_seed(scheme, random), len(own), tensors)
        average = averager.average(torch.from_numpy(own).float())
        return average.double().numpy(), averager.bytes_both_ways * 8 / own.shape[1]

    return run


def with_seed(scheme: Scheme, random: np.random.Generator) -> Scheme:
    """Schemes that have a seed get a new one."""
    if not hasattr(scheme, "seed"):
        return scheme
    seed = int(random.integers(1 << 32))
    if isinstance(scheme, RankCodes | Eden):
        return replace(scheme, seed=seed)
    assert isinstance(scheme, Settings)
    return scheme.model_copy(update={"seed": seed})


def best_scaled(run: Run) -> Run:
    """The average, scaled for the least error: for signs without a scale."""

    def scaled(own: F64, random: np.random.Generator) -> tuple[F64, float]:
        signs, bits = run(own, random)
        return signs * (signs @ own.mean(axis=0) / np.square(signs).sum()), bits

    return scaled
