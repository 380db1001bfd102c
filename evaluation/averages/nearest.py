"""Ranks that decode each other's codes, n of them in one process, by the package's kernels; and EDEN by the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import nearest_rounds
import torch
from reference import Key
from torch import Tensor

from byteps_thc._native import _core
from byteps_thc._scheme.rank_settings import DEFAULT_BITS


@dataclass(frozen=True)
class Nearest:
    """up_bits, down_bits: of a code, 1 .. 8. seed: of signs. eden: with a rotation for each rank."""

    up_bits: int = DEFAULT_BITS
    down_bits: int = DEFAULT_BITS
    seed: int = 0
    eden: bool = False


class NearestAverager:
    """Averages float32[ranks, coordinates].

    tensors: one after the other. blocks: of rotation (default: of up to 8192 coordinates, ending at tensors; ranks have
    smaller ones where a gradient is small). tensor: the random key of this gradient.
    """

    def __init__(
        self, config: Nearest, tensors: Sequence[slice], *, blocks: _core.RotationBlocks | None = None, tensor: int = 0
    ) -> None:
        self._config = config
        self._tensor = tensor
        self._round = 0
        self._blocks = blocks or nearest_rounds.blocks_of(tensors[-1].stop, tensors)
        codes = self._blocks.padded * (config.up_bits + config.down_bits) / 8
        #: Codes, and a float32 for each block, up and down.
        self.bytes_both_ways = codes + 2.0 * 4 * len(self._blocks)

    def average(self, gradients: Tensor) -> Tensor:
        key = Key(self._config.seed, self._tensor, self._round)
        self._round += 1
        config, how = self._config, nearest_rounds.eden_average if self._config.eden else nearest_rounds.average
        return torch.from_numpy(how(list(gradients.numpy()), config.up_bits, config.down_bits, key, self._blocks))
