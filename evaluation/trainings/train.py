"""Small models trained by n workers in one process, seed by seed, with any averager."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from trainings import small_trainings
from trainings.small_trainings import SmallTraining

#: name -> (workers, steps, optimizer, seed) -> a training; 0.24 M, 10 k, 42 k, 0.24 M and 10.7 M parameters.
MODELS: dict[str, Callable[[int, int, str, int], SmallTraining]] = {
    "GPT": small_trainings.gpt,
    "CNN": small_trainings.cnn,
    "MLP": small_trainings.mlp,
    "GPT, fine-tuned": small_trainings.fine_tuned_gpt,
    "GPT, large": small_trainings.large_gpt,
}
#: Two-sided 95 % of Student's distribution, by degrees of freedom.
_STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57}
Average = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Losses:
    """Held-out losses in nats, by step, with one more step than the training."""

    steps: list[int]
    held_out: list[float]

    @property
    def last(self) -> float:
        return self.held_out[-1]


def train(small: SmallTraining, average: Average, *, every: int = 0) -> Losses:
    """Train to the end. average: float32[workers, coordinates] -> float32[coordinates]. every: steps between losses."""
    training = small.training
    steps, losses = [], []
    for step in range(1, training.steps + 1):
        training.update(average(training.gradients()))
        if step == training.steps or (every and step % every == 0):
            steps.append(step)
            losses.append(small.losses()[1])
    return Losses(steps, losses)


def spread(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean over the seeds; 0 for one."""
    if len(values) < 2:
        return 0.0
    return _STUDENT[min(len(values) - 1, max(_STUDENT))] * statistics.stdev(values) / math.sqrt(len(values))


def mean_and_spread(values: Sequence[float], digits: int = 4) -> str:
    """Format mean and spread for readers."""
    return f"{statistics.mean(values):.{digits}f} ± {spread(values):.{digits}f}"
