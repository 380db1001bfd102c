"""Algorithm 1 of the paper, Uniform THC as printed there: without rotation, clamp and table."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AsPrinted:
    """bits: b, for each coordinate of a worker."""

    bits: int


def uniform_thc(gradients: Tensor, bits: int, chance: Tensor) -> Tensor:
    """Average float32[workers, coordinates] as Algorithm 1 says.

    The range [m, M] spans all coordinates of all workers, cut into 2^bits - 1 equal parts. chance: of gradients' shape,
    numbers in [0, 1), independent: a coordinate goes up if its own is below the fraction of its part.
    """
    levels = (1 << bits) - 1
    least, largest = gradients.min(), gradients.max()
    step = ((largest - least) / levels).clamp_min(1e-30)
    u = ((gradients - least) / step).clamp(0, levels)
    low = u.floor().clamp_max(levels - 1)
    sent = low + (chance < u - low)
    return least + sent.sum(dim=0) / len(gradients) * step


class Averager:
    """Averages gradients step by step; keeps nothing but its random numbers."""

    def __init__(self, scheme: AsPrinted, *, seed: int = 0) -> None:
        self._bits = scheme.bits
        self._generator = torch.Generator().manual_seed(seed)

    def average(self, gradients: Tensor) -> Tensor:
        """float32[workers, coordinates] -> float32[coordinates]."""
        return uniform_thc(gradients, self._bits, torch.rand(gradients.shape, generator=self._generator))
