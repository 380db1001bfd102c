"""THC against other ways to average in as many bytes, on several kinds of gradients.

All but servers' work in two hops, as ranks do: every rank quantizes its gradient, the owner of a shard averages what it
decodes, quantizes the average, and sends that to all. Nothing is kept from step to step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import nearest_rounds
import numpy as np
import torch
from reference import Key

from averages.quantizers import F64, Integers, Microscaling, Nvfp4, Quantizer
from averages.servers_averager import ServersAverager
from byteps_thc import ThcConfig
from byteps_thc.config import ResolvedConfig
from byteps_thc.rounding import Rounding

COORDINATES = 1 << 16
#: Kinds of gradients; what they are: gradients().
KINDS = ("normal", "normal, cosine .9", "lognormal, cosine .1", "lognormal, cosine .7", "copies")
REPETITIONS = 2
#: Bits up and down of ranks that decode, and of EDEN.
PAIRS = ((3, 3), (4, 4), (4, 5), (5, 5), (5, 6), (6, 6), (7, 7), (8, 8))
#: The same where averaging takes most of the way up's error, as ranks agree.
IF_ALIKE = ((4, 8), (5, 7), (6, 8))
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
    """A way to average. bits_up, bits_down: of a coordinate, scales included. unbiased: in both hops."""

    @property
    def bits_up(self) -> float: ...

    @property
    def bits_down(self) -> float: ...

    @property
    def unbiased(self) -> bool: ...

    def average(self, own: F64, random: np.random.Generator) -> F64:
        """Average float64[workers, coordinates]."""
        ...


@dataclass(frozen=True)
class TwoHops:
    """Any two quantizers. correlated: ranks round with shared numbers, shifted against each other, as THC's workers do.

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
    """What workers and servers do, by the package's kernels, in a first step."""

    config: ThcConfig
    workers: int
    unbiased: bool = True

    @property
    def resolved(self) -> ResolvedConfig:
        return self.config.resolve(self.workers)

    @property
    def bits_up(self) -> float:
        return self.resolved.table.bits + 32 / self.config.rotation_block

    @property
    def bits_down(self) -> float:
        return self.resolved.value_bits + 32 / self.config.rotation_block

    def average(self, own: F64, random: np.random.Generator) -> F64:
        seeded = self.config.model_copy(update={"seed": int(random.integers(1 << 32))})
        averager = ServersAverager(seeded.resolve(self.workers), own.shape[1])
        average: F64 = averager.average(torch.from_numpy(own).float()).double().numpy()
        return average


@dataclass(frozen=True)
class Nearest:
    """What ranks that decode do, by the package's kernels."""

    up: int
    down: int
    unbiased: bool = True

    @property
    def bits_up(self) -> float:
        return self.up + 32 / nearest_rounds.ROTATION_BLOCK

    @property
    def bits_down(self) -> float:
        return self.down + 32 / nearest_rounds.ROTATION_BLOCK

    def average(self, own: F64, random: np.random.Generator) -> F64:
        key = Key(seed=int(random.integers(1 << 32)), tensor=1, round=0)
        return nearest_rounds.average(list(own.astype(np.float32)), self.up, self.down, key).astype(np.float64)


def alternatives() -> dict[str, TwoHops]:
    """Return what THC is compared with, by name: up + down."""
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


def nmse(scheme: Scheme, kind: str, workers: int) -> float:
    """Return |average - exact average|^2 / |exact average|^2, mean of the repetitions."""
    errors = []
    for repetition in range(REPETITIONS):
        own = gradients(kind, workers, np.random.default_rng([repetition, workers, KINDS.index(kind)]))
        exact = own.mean(axis=0)
        average = scheme.average(own, np.random.default_rng([repetition, 7]))
        errors.append(np.square(average - exact).sum() / np.square(exact).sum())
    return float(np.mean(errors))


def ablation() -> Iterator[tuple[str, Sequence[Scheme]]]:
    """From the paper to what ranks can do, one part after the other, each of ABLATION's workers."""
    parts: dict[str, dict[str, Any]] = {
        "+ average divided by 1 - p": {"granularity": 30, "p": 1 / 32, "rounding": "independent"},
        "+ table for the number of workers": {"rounding": "independent"},
        "+ stratified rounding": {},
    }
    configs = {"the paper: 4 bits, g = 30, p = 1/32": ThcConfig.paper()}  # a first step has no residual
    configs |= {what: ThcConfig(bits=4, error_feedback=False, **settings) for what, settings in parts.items()}
    for what, config in configs.items():
        yield what, [Thc(config, workers) for _, workers in ABLATION]
    for up, down in ((4, 4), (5, 5), (6, 6)):
        yield "ranks that decode", [Nearest(up, down)] * len(ABLATION)
