"""DiLoCo (Douillard et al., 2023): workers take inner steps by themselves, and average the differences.

A worker's outer gradient is its parameters before the inner steps, of AdamW, less its parameters after them. The
average over the workers is the gradient of an outer SGD with Nesterov's momentum; all workers continue from its
parameters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainings.replicas import Replicas
from trainings.train import Average

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9


@dataclass(frozen=True)
class Trained:
    """parameters: float32[coordinates], of all workers. held_out: losses in nats, after each outer step, if wanted."""

    parameters: Tensor
    held_out: list[float]


def train(replicas: Replicas, average: Average, inner: int, outer: int, *, losses: bool = False) -> Trained:
    """Train the workers that are in this process, `outer` times `inner` steps.

    average: of outer gradients, float32[workers in this process, coordinates] -> float32[coordinates].
    """
    kept = nn.Parameter(replicas.parameters()[0].clone())
    sgd = torch.optim.SGD([kept], lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True)
    held_out = []
    for _ in range(outer):
        for _ in range(inner):
            replicas.update(replicas.gradients())  # each takes its own
        kept.grad = average(kept.detach() - replicas.parameters())
        sgd.step()
        replicas.set_parameters(kept.detach())
        if losses:
            held_out.append(replicas.all[0].losses()[1])
    return Trained(kept.detach(), held_out)
