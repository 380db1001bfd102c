"""Held-out losses of several schemes over the same seeds, and how many steps they need to get somewhere."""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context, parent_process

import torch
from trainings.train import MODELS, Losses, spread, train

from averages.averagers import Scheme, make

PROCESSES = 2
OPTIMIZERS = {"GPT": "AdamW", "CNN": "SGD", "GPT, fine-tuned": "AdamW"}


@dataclass(frozen=True)
class Curve:
    """A scheme's losses, seed by seed, and the bytes of a worker and step."""

    bytes_both_ways: float
    seeds: list[Losses]

    @property
    def steps(self) -> list[int]:
        return self.seeds[0].steps

    def means(self) -> list[float]:
        """By step, over the seeds."""
        return [statistics.mean(losses) for losses in zip(*(seed.held_out for seed in self.seeds), strict=True)]

    def spreads(self) -> list[float]:
        """By step: see trainings.spread()."""
        return [spread(losses) for losses in zip(*(seed.held_out for seed in self.seeds), strict=True)]

    def excess(self, over: Curve) -> list[float]:
        """By seed, how far the last loss is above another scheme's, as a part of that."""
        return [own.last / other.last - 1 for own, other in zip(self.seeds, over.seeds, strict=True)]

    def steps_to(self, factor: float, of: Curve) -> list[float | None]:
        """By seed, steps to another scheme's last loss times a factor; None where that is not reached."""
        return [steps_to(own, factor * other.last) for own, other in zip(self.seeds, of.seeds, strict=True)]


def steps_to(losses: Losses, target: float) -> float | None:
    """Steps until the loss is `target`, between two measurements on the line through them; None where it never is."""
    before: tuple[int, float] | None = None
    for step, loss in zip(losses.steps, losses.held_out, strict=True):
        if loss <= target:
            if before is None:
                return float(step)
            return before[0] + (step - before[0]) * (before[1] - target) / (before[1] - loss)
        before = step, loss
    return None


def mean_steps(steps: Sequence[float | None]) -> float | None:
    """Over the seeds; None where one did not get there."""
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
    return {name: Curve(seeds[0][0], [losses for _, losses in seeds]) for name, seeds in found.items()}


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
) -> tuple[float, Losses]:
    """In a process of the pool: bytes of a worker and step, and the losses."""
    small = MODELS[model](workers, steps, OPTIMIZERS[model], seed)
    shapes = [parameter.shape for parameter in small.training.parameters]
    tensors = small.training.tensors
    averager = make(scheme, workers, tensors, shapes=shapes, bypass_elements=bypass_elements)
    return averager.bytes_both_ways, train(small, averager.average, every=every)
