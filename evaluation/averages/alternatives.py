"""Alternatives to THC at as many bytes, and the kinds of gradients.

All work in two hops, as ranks do: every rank quantizes its gradient, the owner of a shard decodes, averages, quantizes
the average, and sends it to all. No state is kept from step to step.
"""

from dataclasses import dataclass

import numpy as np

from averages.quantizers import F64, Integers, Microscaling, Nvfp4, Quantizer
from byteps_thc._scheme.rounding import Rounding

COORDINATES = 1 << 16
#: Kinds of gradients, as gradients() explains them.
KINDS = ("normal", "normal, cosine .9", "lognormal, cosine .1", "lognormal, cosine .7", "copies")
#: Bits up and down of ranks that decode, and of EDEN.
PAIRS = ((3, 3), (4, 4), (4, 5), (5, 5), (5, 6), (6, 6), (7, 7), (8, 8))
#: Bits for ranks that agree, if averaging removes most of the error of the way up.
IF_ALIKE = ((4, 8), (5, 7), (6, 8))
#: Coordinates of neighbouring ones that share a scale of the lognormal kinds, as a tensor's do.
_RUN = 256


def gradients(kind: str, workers: int, random: np.random.Generator, coordinates: int = COORDINATES) -> F64:
    """Return float64[workers, coordinates].

    normal: independent, or with the given cosine between workers. lognormal: normal vectors with the given cosine,
    times scales of coordinates that all workers share, each times its run's scale. copies: one lognormal vector, as in
    the paper's Figure 15.
    """
    if kind == "copies":
        one = np.exp(random.standard_normal(coordinates)) * random.choice([-1.0, 1.0], coordinates)
        return np.tile(one, (workers, 1))
    cosine = float(kind.split()[-1]) if "cosine" in kind else 0.0
    common, own = random.standard_normal(coordinates), random.standard_normal((workers, coordinates))
    alike = np.sqrt(cosine) * common + np.sqrt(1 - cosine) * own
    if kind.startswith("normal"):
        return alike
    runs = np.repeat(random.standard_normal(coordinates // _RUN), _RUN)
    return np.asarray(alike * np.exp(random.standard_normal(coordinates) + runs))


@dataclass(frozen=True)
class TwoHops:
    """Any two quantizers. correlated: ranks round with shared numbers, shifted against each other, as THC's workers do.

    The paper "Correlated quantization" (Suresh et al., ICML 2022) permutes the shifts anew for each coordinate.
    """

    up: Quantizer
    down: Quantizer
    correlated: bool = False

    @property
    def bits_up(self) -> float:
        return self.up.bits

    @property
    def bits_down(self) -> float:
        return self.down.bits

    @property
    def unbiased(self) -> bool:
        return self.up.unbiased and self.down.unbiased

    def average(self, own: F64, random: np.random.Generator) -> F64:
        workers, coordinates = own.shape
        shared = random.random(coordinates)
        phases = [Rounding.of("stratified", worker, workers).phase / (1 << 16) for worker in range(workers)]
        total = np.zeros(coordinates)
        for x, phase in zip(own, phases, strict=True):
            total += self.up(x, (shared + phase) % 1 if self.correlated else random.random(coordinates))
        return self.down(total / workers, random.random(coordinates))


def alternatives() -> dict[str, TwoHops]:
    """Return THC's alternatives, by name: up + down."""
    mxfp4, mxfp8 = Microscaling("e2m1"), Microscaling("e4m3")
    found: dict[str, TwoHops] = {}
    qsgd = {bits: Integers(bits, 512, scale=np.float32) for bits in (4, 6, 8)}
    found["QSGD 4 + 8, largest of 512"] = TwoHops(qsgd[4], qsgd[8])
    found["QSGD 6 + 6, largest of 512"] = TwoHops(qsgd[6], qsgd[6])
    l2 = {bits: Integers(bits, 512, "l2", np.float32) for bits in (4, 8)}
    found["QSGD 4 + 8, L2 norm of 512"] = TwoHops(l2[4], l2[8])
    found["MXFP4 + MXFP4"] = TwoHops(mxfp4, mxfp4)
    found["MXFP4 + MXFP8"] = TwoHops(mxfp4, mxfp8)
    found["MXFP4, random + MXFP8"] = TwoHops(Microscaling("e2m1", nearest=False), mxfp8)
    found["MXFP8 + MXFP8"] = TwoHops(mxfp8, mxfp8)
    found["NVFP4 + NVFP4"] = TwoHops(Nvfp4(nearest=True), Nvfp4(nearest=True))
    found["NVFP4, random + MXFP8"] = TwoHops(Nvfp4(), mxfp8)
    for group, widths in ((64, ((4, 8), (5, 5), (6, 6))), (16, ((4, 8),))):
        for up, down in widths:
            hops = Integers(up, group), Integers(down, group)
            found[f"int{up} + int{down}, groups of {group}"] = TwoHops(*hops)
            found[f"correlated int{up} + int{down}, groups of {group}"] = TwoHops(*hops, correlated=True)
    nearest = Integers(6, 64, nearest=True)
    found["int6 + int6, groups of 64, nearest"] = TwoHops(nearest, nearest)
    return found
