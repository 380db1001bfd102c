"""Ranks that decode each other's codes, n of them in one process: nearest points, by the package's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import nearest_rounds
import torch
from reference import Key
from torch import Tensor


@dataclass(frozen=True)
class Nearest:
    """up_bits, down_bits: of a code, 1 .. 8. seed: of signs."""

    up_bits: int
    down_bits: int
    seed: int = 0


class NearestAverager:
    """Averages float32[ranks, coordinates]. Rotation blocks end at tensors.

    tensors: one after the other. tensor: what the random numbers of this gradient are told from others' by.
    """

    def __init__(self, config: Nearest, tensors: Sequence[slice], *, tensor: int = 0) -> None:
        self._config = config
        self._tensor = tensor
        self._round = 0
        self._blocks = nearest_rounds.blocks_of(tensors[-1].stop, tensors)
        codes = self._blocks.padded * (config.up_bits + config.down_bits) / 8
        #: Codes, and a float32 for each block, up and down.
        self.bytes_both_ways = codes + 2.0 * 4 * len(self._blocks)

    def average(self, gradients: Tensor) -> Tensor:
        key = Key(self._config.seed, self._tensor, self._round)
        self._round += 1
        own = list(gradients.numpy())
        average = nearest_rounds.average(own, self._config.up_bits, self._config.down_bits, key, self._blocks)
        return torch.from_numpy(average)
