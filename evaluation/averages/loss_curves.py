"""Held-out losses of several schemes over the same seeds, and their steps to a given loss."""

import os
import statistics
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process

import torch
from torch import Tensor
from trainings.train import MODELS, Average, Losses, spread, train

from averages.averagers import Scheme, make

PROCESSES = 2
OPTIMIZERS = {"GPT": "AdamW", "CNN": "SGD", "GPT, fine-tuned": "AdamW", "GPT, large": "AdamW"}
#: Decay of a coordinate's running mean square: AdamW's second beta in these trainings.
DECAY = 0.95


@dataclass(frozen=True)
class Errors:
    """Mean errors of a training's averages.

    nmse: squared error over the energy of the exact average
    own: squared error of a coordinate over the running mean square of that coordinate, mean over coordinates
    """

    nmse: float
    own: float


class Metered:
    """Measure the errors of an average. The running mean square includes the errors, as an optimizer sees them."""

    def __init__(self, average: Average) -> None:
        self._average = average
        self._steps, self._nmse, self._own = 0, 0.0, 0.0
        self._squares: Tensor | float = 0.0

    def __call__(self, gradients: Tensor) -> Tensor:
        average, exact = self._average(gradients), gradients.mean(dim=0)
        errors, energy = (average - exact).square(), exact.square()
        self._steps += 1
        self._squares = self._squares * DECAY + (energy + errors) * (1 - DECAY)
        size = self._squares / (1 - DECAY**self._steps)
        self._nmse += float(errors.sum() / energy.sum())
        self._own += float(torch.where(size > 0, errors / size, size).mean())
        return average

    @property
    def errors(self) -> Errors:
        return Errors(self._nmse / self._steps, self._own / self._steps)


@dataclass(frozen=True)
class Curve:
    """A scheme's losses and errors, seed by seed, and the bytes of a worker and step."""

    bytes_both_ways: float
    seeds: list[Losses]
    errors: list[Errors] = field(default_factory=list)

    @property
    def nmse(self) -> float:
        return statistics.mean(one.nmse for one in self.errors)

    @property
    def own_error(self) -> float:
        """See Errors.own."""
        return statistics.mean(one.own for one in self.errors)

    @property
    def steps(self) -> list[int]:
        return self.seeds[0].steps

    def means(self) -> list[float]:
        """Mean losses over the seeds, by step."""
        return [statistics.mean(losses) for losses in zip(*(seed.held_out for seed in self.seeds), strict=True)]

    def spreads(self) -> list[float]:
        """Spreads of the losses, by step: see trainings.spread()."""
        return [spread(losses) for losses in zip(*(seed.held_out for seed in self.seeds), strict=True)]

    def excess(self, over: "Curve") -> list[float]:
        """Excess of the last loss over another scheme's, as a share, by seed."""
        return [own.last / other.last - 1 for own, other in zip(self.seeds, over.seeds, strict=True)]

    def steps_to(self, factor: float, of: "Curve") -> list[float | None]:
        """Steps to another scheme's last loss times a factor, by seed; None if it is not reached."""
        return [steps_to(own, factor * other.last) for own, other in zip(self.seeds, of.seeds, strict=True)]


def steps_to(losses: Losses, target: float) -> float | None:
    """Steps until the loss is `target`, on the line through neighbouring measurements; None if never."""
    before: tuple[int, float] | None = None
    for step, loss in zip(losses.steps, losses.held_out, strict=True):
        if loss <= target:
            if before is None:
                return float(step)
            return before[0] + (step - before[0]) * (before[1] - target) / (before[1] - loss)
        before = step, loss
    return None


def mean_steps(steps: Sequence[float | None]) -> float | None:
    """Mean over the seeds; None if a seed did not get there."""
    reached = [step for step in steps if step is not None]
    return statistics.mean(reached) if len(reached) == len(steps) else None


def train_all(
    model: str,
    schemes: Mapping[str, Scheme],
    *,
    workers: int,
    steps: int,
    every: int,
    seeds: int,
    bypass_elements: int = 0,
    processes: int = PROCESSES,
) -> dict[str, Curve]:
    """Train `model` once for each scheme and seed, `processes` at a time; see trainings.train().

    bypass_elements: tensors with fewer elements are averaged in fp32.
    """
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_prepare) as pool:
        pending = {
            name: [
                pool.submit(_train, model, scheme, workers, steps, every, seed, bypass_elements)
                for seed in range(1, seeds + 1)
            ]
            for name, scheme in schemes.items()
        }
        found = {name: [training.result() for training in trainings] for name, trainings in pending.items()}
    return {name: Curve(of[0][0], [one[1] for one in of], [one[2] for one in of]) for name, of in found.items()}


def _prepare() -> None:
    """A process of the pool has one thread, and ends with its parent: which may be killed."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
    torch.set_num_threads(1)


def _train(
    model: str, scheme: Scheme, workers: int, steps: int, every: int, seed: int, bypass_elements: int
) -> tuple[float, Losses, Errors]:
    """Train in a process of the pool; return bytes of a worker and step, the losses, and the errors."""
    small = MODELS[model](workers, steps, OPTIMIZERS[model], seed)
    shapes = [parameter.shape for parameter in small.training.parameters]
    tensors = small.training.tensors
    averager = make(scheme, workers, tensors, shapes=shapes, bypass_elements=bypass_elements)
    metered = Metered(averager.average)
    losses = train(small, metered, every=every)
    return averager.bytes_both_ways, losses, metered.errors
