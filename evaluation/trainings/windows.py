"""Gradients of the workers of a training, early, in the middle and late."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from byteps_thc._engine.policy import CompressionPolicy
from trainings.models import Training


@dataclass(frozen=True)
class Window:
    """Gradients of one step: float32[workers, coordinates], without parameters that travel uncompressed."""

    name: str
    gradients: Tensor
    tensors: list[slice]

    @property
    def cosine(self) -> float:
        """Mean cosine between the gradients of two workers."""
        unit = self.gradients / self.gradients.norm(dim=1, keepdim=True)
        workers = len(unit)
        return (float((unit @ unit.T).sum()) - workers) / (workers * (workers - 1))


def windows_of(training: Training, name: str, *, trained: int | None = None) -> Iterator[Window]:
    """Train on exact averages; give the step after a 20th, at half and at the end of the training.

    trained: workers that train between the windows (default: all).
    """
    batches = training.batches
    kept = [span for span in training.tensors if span.stop - span.start >= CompressionPolicy().bypass_elements]
    ends = itertools.accumulate((span.stop - span.start for span in kept), initial=0)
    tensors = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
    for phase, start in (
        ("early", training.steps // 20), ("middle", training.steps // 2), ("late", training.steps - 1)
    ):  # fmt: skip
        training.batches = batches[:trained]
        while training.taken < start:
            training.update(training.gradients().mean(dim=0))
        training.batches = batches
        gradients = training.gradients()
        training.update(gradients.mean(dim=0))
        yield Window(f"{name} {phase}", torch.cat([gradients[:, span] for span in kept], dim=1), tensors)
