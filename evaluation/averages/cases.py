"""Gradients for comparing schemes: drawn ones of all kinds, and gradients of two trainings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from trainings import models
from trainings.windows import Window, windows_of

from averages.alternatives import KINDS, gradients
from averages.quantizers import F64

#: Coordinates of a rotation block, for servers' codes and EDEN.
ROTATION_BLOCK = 8192


@dataclass(frozen=True)
class Case:
    """Gradients of n workers, float64[n, coordinates], and the tensors in them."""

    kind: str
    own: F64
    tensors: list[slice]

    @property
    def workers(self) -> int:
        return len(self.own)


def synthetic(workers: Sequence[int], coordinates: int) -> Iterator[Case]:
    """All kinds for all numbers of workers."""
    for kind in KINDS:
        for n in workers:
            random = np.random.default_rng([2, n, KINDS.index(kind)])
            yield Case(kind, gradients(kind, n, random, coordinates), [slice(0, coordinates)])


def real(names: Sequence[str], workers: Sequence[int], steps: int) -> Iterator[Case]:
    """Gradients of trainings on exact averages, early, in the middle and late; the first of all workers'."""
    for name in names:
        training = {"GPT": models.gpt, "CNN": models.cnn}[name](max(workers), steps)
        for window in windows_of(training, name):
            own, tensors = quarter(window)
            for n in workers:
                yield Case(window.name, own[:n], tensors)


def quarter(window: Window) -> tuple[F64, list[slice]]:
    """The first quarter of each tensor, and zeros behind the last up to a whole rotation block."""
    parts, tensors, start = [], list[slice](), 0
    for span in window.tensors:
        size = (span.stop - span.start + 3) // 4
        parts.append(window.gradients[:, span.start : span.start + size])
        tensors.append(slice(start, start + size))
        start += size
    padding = -start % ROTATION_BLOCK
    tensors[-1] = slice(tensors[-1].start, start + padding)
    own = torch.nn.functional.pad(torch.cat(parts, dim=1), (0, padding))
    return own.double().numpy(), tensors
