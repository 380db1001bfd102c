"""Which old ranks' residuals a new rank takes over when a checkpoint is loaded by another number of ranks.

What n ranks still owe to the model is the mean of their residuals: the average of the next gradients would have
contained it. Redistribution to m ranks keeps that mean. Old ranks lie on a line, each as long as any other; new ranks
cut the same line into m equal parts, and each takes the mean of what lies in its part:

    4 -> 2   new 0: mean of 0 and 1             new 1: mean of 2 and 3
    2 -> 4   new 0 and 1: old 0                 new 2 and 3: old 1
    3 -> 2   new 0: 2/3 of 0 and 1/3 of 1       new 1: 1/3 of 1 and 2/3 of 2

A mean of residuals is no larger than the largest of them, so nobody starts with a clamp that is too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from byteps_thc._scheme.errors import ConfigurationError


@dataclass(frozen=True)
class Share:
    """Part of a new rank's residual: `weight` times that of the old rank `worker`. A rank's weights add up to 1."""

    worker: int
    weight: Fraction


def shares(worker: int, workers: int, old_workers: int) -> list[Share]:
    """Return what rank `worker` of `workers` takes over from a checkpoint of `old_workers` ranks.

    The same number of ranks gives every rank its own residual, unchanged. Over the new ranks, an old rank's weights
    add up to workers / old_workers. ConfigurationError when a number is out of range.
    """
    if not 0 <= worker < workers or old_workers < 1:
        raise ConfigurationError(f"no such rank: {worker} of {workers}, from a checkpoint of {old_workers}")
    # In units of 1/workers of an old rank, which are 1/old_workers of a new one.
    start, stop = worker * old_workers, (worker + 1) * old_workers
    taken = []
    for old in range(start // workers, -(-stop // workers)):
        overlap = min(stop, (old + 1) * workers) - max(start, old * workers)
        taken.append(Share(old, Fraction(overlap, old_workers)))
    return taken
