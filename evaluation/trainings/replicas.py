"""A training's model once for each of its workers, in one process: for averages that are not the same for all."""

import copy
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from trainings.small_trainings import SmallTraining
from trainings.train import MODELS


def replica_of(name: str, workers: int, steps: int, optimizer: str, seed: int, worker: int) -> SmallTraining:
    """One worker's part of a training: its own batches, and a model that begins like the others'."""
    small = MODELS[name](workers, steps, optimizer, seed)
    small.training.batches = [small.training.batches[worker]]
    return small


class Replicas:
    """Replicas of the workers in this process."""

    def __init__(self, replicas: Sequence[SmallTraining]) -> None:
        self.all = replicas

    @classmethod
    def of(cls, name: str, workers: int, steps: int, optimizer: str, seed: int) -> Self:
        """Replicas of all workers."""
        return cls([replica_of(name, workers, steps, optimizer, seed, worker) for worker in range(workers)])

    def gradients(self) -> Tensor:
        """float32[workers, coordinates], each of the worker's own model."""
        return torch.cat([small.training.gradients() for small in self.all])

    def update(self, averages: Tensor) -> None:
        """A step of each, with its own row."""
        for small, average in zip(self.all, averages, strict=True):
            small.training.update(average)

    def parameters(self) -> Tensor:
        """float32[workers, coordinates]."""
        with torch.no_grad():
            return torch.stack(
                [nn.utils.parameters_to_vector(small.training.parameters) for small in self.all],
            )

    def set_parameters(self, all_alike: Tensor) -> None:
        """float32[coordinates]."""
        with torch.no_grad():
            for small in self.all:
                nn.utils.vector_to_parameters(all_alike.clone(), small.training.parameters)

    def synchronize(self) -> None:
        """Parameters, buffers and optimizer's state of the first, as ParameterSynchronizer copies them."""
        first, *others = (small.training for small in self.all)
        model, optimizer = first.model.state_dict(), first.optimizer.state_dict()
        for training in others:
            training.model.load_state_dict(model)
            training.optimizer.load_state_dict(copy.deepcopy(optimizer))

    def drift(self) -> float:
        """Largest distance from the first's parameters, relative to their norm."""
        parameters = self.parameters()
        return float((parameters - parameters[0]).norm(dim=1).max() / parameters[0].norm())
