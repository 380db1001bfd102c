"""Ranks that decode each other's codes, n in one process, by the package's kernels."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from byteps_thc._base.arrays import F32
from byteps_thc._native import _core
from byteps_thc._scheme.block_plan import BLOCK
from byteps_thc._scheme.decoding.settings import DEFAULT_BITS
from byteps_thc._scheme.shares import even_cuts
from thc_lab import block_rounds as rounds


@dataclass(frozen=True)
class RankCodes:
    """Settings of ranks that decode.

    up_bits, down_bits: bits of a code, 1 .. 8
    seed: of signs and dither
    """

    up_bits: int = DEFAULT_BITS
    down_bits: int = DEFAULT_BITS
    seed: int = 0


class RanksAverager:
    """Averages float32[ranks, coordinates].

    tensors: one after the other
    ranks: each owns a shard of the blocks
    blocks: of the gradient (default: blocks end at tensors)
    tensor: random key of this gradient
    """

    def __init__(
        self,
        config: RankCodes,
        tensors: Sequence[slice],
        ranks: int,
        *,
        blocks: _core.BlockTable | None = None,
        tensor: int = 0,
    ) -> None:
        self._config, self._tensor, self._round = config, tensor, 0
        blocks = blocks or rounds.blocks_of(*((span.start, span.stop) for span in tensors))
        self._shards = [blocks.part(*shard) for shard in itertools.pairwise(even_cuts(len(blocks), ranks))]
        widths = config.up_bits, config.down_bits
        codes = sum(_core.code_bytes(BLOCK * len(blocks), bits) for bits in widths)
        #: Codes and scales, up and down.
        self.bytes_both_ways = float(codes + 2 * sum(_core.scale_bytes(len(shard)) for shard in self._shards))

    def average(self, gradients: Tensor) -> Tensor:
        return torch.from_numpy(self.average_rows(gradients.numpy()))

    def average_rows(self, gradients: F32) -> F32:
        """Average the rows in one round."""
        config, own = self._config, list(np.ascontiguousarray(gradients))
        key = rounds.Key(config.seed, self._tensor, self._round)
        self._round += 1
        # Each shard leaves zeros beside its blocks.
        return sum(
            (rounds.average(own, config.up_bits, config.down_bits, key, shard) for shard in self._shards if len(shard)),
            np.zeros(gradients.shape[1], np.float32),
        )
