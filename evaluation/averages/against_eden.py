"""Errors of ranks that decode each other's codes, over EDEN's at the same bits: on drawn and on real gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import nearest_rounds as rounds
import numpy as np
from reference import F32, Key
from trainings import models
from trainings.windows import Window, windows_of

from byteps_thc._native import _core

KINDS = ("normal", "lognormal", "cosine .9", "copies")
#: Gradients that are kept, as all bits and ranks need them.
CACHED = 8
#: Ranks that train between the gradients that are compared.
TRAINED = 4
MODELS: dict[str, Callable[[int, int], models.Training]] = {"GPT": models.gpt, "CNN": models.cnn}


@dataclass(frozen=True)
class Errors:
    """Of the averages of so many ranks, at as many bits up as down.

    ratio: squared error over EDEN's. noise: standard error of that over the repetitions. nmse: squared error over the
    average's energy. tensor: largest ratio of a tensor.
    """

    ranks: int
    bits: int
    ratio: float
    noise: float
    nmse: float
    tensor: float


@dataclass(frozen=True)
class Gradients:
    """Of one kind, for the most ranks: fewer ranks are the first. draw: float32[ranks, coordinates], by repetition.

    cosine: mean between two ranks.
    """

    kind: str
    cosine: float
    tensors: Sequence[slice]
    draw: Callable[[int], F32]

    def errors(self, ranks: int, bits: int, repetitions: int) -> Errors:
        """Average the gradients `repetitions` times, each with other random signs."""
        blocks = rounds.blocks_of(self.tensors[-1].stop, self.tensors)
        both = np.array([self._squares(ranks, bits, repetition, blocks) for repetition in range(repetitions)])
        own, edens, energy = both.sum(axis=2).T
        ratio = float(own.sum() / edens.sum())
        noise = float(np.std(own - ratio * edens, ddof=1) * math.sqrt(repetitions) / edens.sum())
        by_tensor = both.sum(axis=0)
        return Errors(
            ranks, bits, ratio, noise, float(own.sum() / energy.sum()), float((by_tensor[0] / by_tensor[1]).max())
        )

    def _squares(self, ranks: int, bits: int, repetition: int, blocks: _core.RotationBlocks) -> list[list[float]]:
        """[own error, EDEN's, energy][tensor]."""
        gradients = list(self.draw(repetition)[:ranks])
        exact, key = np.asarray(np.mean(gradients, axis=0, dtype=np.float64)), Key(repetition, 1, 2)
        own = rounds.average(gradients, bits, bits, key, blocks) - exact
        edens = rounds.eden_average(gradients, bits, bits, key, blocks) - exact
        return [[float(np.square(x[span]).sum()) for span in self.tensors] for x in (own, edens, exact)]


def synthetic(ranks: int, coordinates: int) -> Iterator[Gradients]:
    """normal: independent. lognormal: with scales of coordinates that ranks share. cosine .9; copies of one vector."""

    @lru_cache(maxsize=CACHED)
    def drawn(kind: str, repetition: int) -> F32:
        random = np.random.default_rng([repetition, ranks])
        own = np.asarray(random.standard_normal((ranks, coordinates)))
        if kind == "lognormal":
            own *= np.exp(random.standard_normal(coordinates))
        elif kind == "cosine .9":
            own = np.sqrt(0.9) * random.standard_normal(coordinates) + np.sqrt(0.1) * own
        elif kind == "copies":
            own[:] = own[0]
        return own.astype(np.float32)

    cosines = dict(zip(KINDS, (0.0, 0.0, 0.9, 1.0), strict=True))
    for kind in KINDS:
        yield Gradients(kind, cosines[kind], [slice(0, coordinates)], partial(drawn, kind))


def real(ranks: int, steps: int) -> Iterator[Gradients]:
    """Of independent batches, early, in the middle and late in trainings on exact averages."""
    for name, make in MODELS.items():
        for window in windows_of(make(ranks, steps), name, trained=TRAINED):
            yield of_window(window)


def of_window(window: Window) -> Gradients:
    gradients = window.gradients.numpy()
    return Gradients(window.name, window.cosine, window.tensors, lambda _: gradients)
