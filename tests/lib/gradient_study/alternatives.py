"""THC among ranks against other ways to average in as many bytes, on several kinds of gradients.

All work in two hops, as ranks do: every rank quantizes its gradient, the owner of a shard averages what it decodes,
quantizes the average, and sends that to all. Nothing is kept from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Protocol

import numpy as np
import torch

from byteps_thc import ThcConfig
from byteps_thc.compressor import SCALE_GROUP
from byteps_thc.config import ResolvedConfig
from byteps_thc.rounding import Rounding
from gradient_study.quantizers import F64, Eden, Integers, Microscaling, Nvfp4, Quantizer
from gradient_study.ranks_averager import RanksAverager

COORDINATES = 1 << 16
WORKERS = (2, 4, 8, 17, 32)
#: Kinds of gradients; what they are: gradients().
KINDS = ("normal", "normal, cosine .9", "lognormal, cosine .1", "lognormal, cosine .7", "copies")
REPETITIONS = 2
#: What THC may take; against an alternative the most that is in its bits, so that THC's scales (0.07 bits) may be more.
TOTAL_BITS = range(8, 17)
#: bits, down_bits and p that total_bits does not choose, as it knows nothing of how much gradients agree.
IF_ALIKE: tuple[dict[str, Any], ...] = (
    {"bits": 5, "down_bits": 7},
    {"bits": 5, "down_bits": 7, "p": 1 / 1024},
    {"bits": 4, "down_bits": 8, "p": 1 / 1024},
    {"bits": 6, "down_bits": 8},
)
#: Where the parts are measured one by one.
ABLATION = (("normal", 4), ("normal", 8), ("normal", 17), ("normal, cosine .9", 8), ("copies", 8))
#: Coordinates of neighbouring ones that share a scale of the lognormal kinds, as a tensor's do.
_RUN = 256


def gradients(kind: str, workers: int, random: np.random.Generator, coordinates: int = COORDINATES) -> F64:
    """Return float64[workers, coordinates].

    normal: independent, or with that cosine between workers. lognormal: normal vectors with that cosine, times scales
    of coordinates that all workers share, each times that of its run. copies: one lognormal vector, as in the paper's
    Figure 15.
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


class Scheme(Protocol):
    """A way to average. bits_up, bits_down: of a coordinate, scales included."""

    @property
    def bits_up(self) -> float: ...

    @property
    def bits_down(self) -> float: ...

    def average(self, own: F64, random: np.random.Generator) -> F64:
        """Average float64[workers, coordinates]."""
        ...


@dataclass(frozen=True)
class TwoHops:
    """Any two quantizers. correlated: ranks round with shared numbers, shifted against each other, as THC's do.

    That is "Correlated quantization" (Suresh et al., ICML 2022), which permutes the shifts anew for each coordinate.
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


@dataclass(frozen=True)
class Thc:
    """What ranks do, by the package's kernels, in a first step."""

    config: ThcConfig
    workers: int

    @property
    def resolved(self) -> ResolvedConfig:
        return self.config.resolve(self.workers, packed_sums=True)

    @property
    def bits_up(self) -> float:
        return self.resolved.table.bits + 32 / self.config.rotation_block

    @property
    def bits_down(self) -> float:
        scales = 0.0 if self.resolved.down is None else 16 / SCALE_GROUP
        return self.resolved.sum_bits + scales + 32 / self.config.rotation_block

    def average(self, own: F64, random: np.random.Generator) -> F64:
        seeded = self.config.model_copy(update={"seed": int(random.integers(1 << 32))})
        averager = RanksAverager(seeded.resolve(self.workers, packed_sums=True), own.shape[1])
        average: F64 = averager.average(torch.from_numpy(own).float()).double().numpy()
        return average


def requantized(workers: int, **settings: Any) -> Thc:
    """Return THC without error feedback; settings: total_bits, or bits and down_bits, and p."""
    config = ThcConfig(error_feedback=False, rounding="stratified", **settings)
    return Thc(config, workers)


def alternatives() -> dict[str, TwoHops]:
    """Return what THC is compared with, by name: up + down."""
    mxfp4, mxfp8 = Microscaling("e2m1"), Microscaling("e4m3")
    found = {f"EDEN {up} + {down}": TwoHops(Eden(up), Eden(down)) for up, down in ((4, 4), (4, 8), (5, 6), (6, 6))}
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


def nmse(scheme: Scheme, kind: str, workers: int) -> float:
    """Return |average - exact average|^2 / |exact average|^2, mean of the repetitions."""
    errors = []
    for repetition in range(REPETITIONS):
        own = gradients(kind, workers, np.random.default_rng([repetition, workers, KINDS.index(kind)]))
        exact = own.mean(axis=0)
        average = scheme.average(own, np.random.default_rng([repetition, 7]))
        errors.append(np.square(average - exact).sum() / np.square(exact).sum())
    return float(np.mean(errors))


@dataclass(frozen=True)
class Errors:
    """NMSE of one scheme. nmse: by kind, of as many ranks each as WORKERS says.

    total: of an alternative the total_bits that THC is given against it; of THC its own, None where others are given.
    """

    what: str
    bits_up: float
    bits_down: float
    unbiased: bool
    total: int | None
    nmse: dict[str, list[float]]


def thc_errors() -> Iterator[Errors]:
    """THC's: the pairs that total_bits chooses, and others that are better where gradients are alike."""
    for total in TOTAL_BITS:
        yield _errors(f"total_bits={total}", partial(requantized, total_bits=total), unbiased=True, total=total)
    for settings in IF_ALIKE:
        name = f"{settings['bits']} + {settings['down_bits']}" + (", p=1/1024" if "p" in settings else "")
        yield _errors(name, partial(requantized, **settings), unbiased=True, total=None)


def alternative_errors() -> Iterator[Errors]:
    for name, scheme in alternatives().items():
        total = int(scheme.bits_up + scheme.bits_down)
        yield _errors(name, lambda _, same=scheme: same, unbiased=scheme.unbiased, total=min(total, TOTAL_BITS[-1]))


def _errors(what: str, scheme: Callable[[int], Scheme], *, unbiased: bool, total: int | None) -> Errors:
    """Measure a scheme, which is that of so many ranks, on all kinds."""
    schemes = [scheme(workers) for workers in WORKERS]
    found = {kind: [nmse(*each) for each in zip(schemes, repeat(kind), WORKERS)] for kind in KINDS}
    return Errors(what, schemes[0].bits_up, schemes[0].bits_down, unbiased, total, found)


def ablation() -> Iterator[tuple[str, list[Thc]]]:
    """From the paper to what ranks can do, one part after the other, each of ABLATION's workers."""
    parts = {
        "the paper: 4 bits, g = 30, p = 1/32": ThcConfig.paper(error_feedback=True),  # a first step has no residual
        "+ average divided by 1 - p": ThcConfig.paper(error_feedback=False),
        "+ table for the number of ranks": _exact_sums(rounding="independent"),
        "+ stratified rounding": _exact_sums(rounding="stratified"),
        "+ what is known of it subtracted": _exact_sums(rounding="stratified", subtract_rounding=True),
    }
    for what, config in parts.items():
        yield what, [Thc(config, workers) for _, workers in ABLATION]
    for total in (11, 12):
        for what, settings in {"": {}, ", what is known subtracted": {"subtract_rounding": True}}.items():
            schemes = [requantized(n, total_bits=total, **settings) for _, n in ABLATION]
            yield f"stratified, sums requantized, {total} bits{what}", schemes


def _exact_sums(**settings: Any) -> ThcConfig:
    return ThcConfig(bits=4, down_bits=None, total_bits=None, error_feedback=False, **settings)
