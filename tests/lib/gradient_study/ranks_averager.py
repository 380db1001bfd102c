"""Averages as ranks make them, by the package's kernels, all ranks in this process."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from byteps_thc import Compressor, _core
from byteps_thc.arrays import value_dtype
from byteps_thc.block_plan import WHOLE, BlockPlan
from byteps_thc.compressor import Partition, received_by_all
from byteps_thc.config import ResolvedConfig


class RanksAverager:
    """Averages gradients of all ranks, the whole of them as one partition.

    name, plan: of the partition: what chooses its random numbers, and its rotation blocks (Compressor.partition).
    """

    def __init__(
        self, resolved: ResolvedConfig, coordinates: int, *, name: str = "gradient", plan: BlockPlan = WHOLE
    ) -> None:
        self._resolved = resolved
        self._compressors = [
            Compressor(resolved, workers=resolved.workers, worker=worker, threads=1)
            for worker in range(resolved.workers)
        ]
        self.partitions: list[Partition] = [rank.partition(name, coordinates, plan=plan) for rank in self._compressors]
        self._round = 0

    def average(self, gradients: Tensor) -> Tensor:
        """Average float32[ranks, coordinates]."""
        tasks = list(zip(self._compressors, self.partitions, gradients.numpy(), strict=True))
        norms = np.maximum.reduce([rank.measure(partition, own, round=self._round) for rank, partition, own in tasks])
        table, first = self._resolved.table, self.partitions[0]
        sums = np.zeros(first.padded, value_dtype(self._resolved.value_bits))
        for rank, partition, _ in tasks:
            _core.lookup_sum(rank.encode(partition, norms), table.array, sums, bits=table.bits, add=True)
        average = torch.empty_like(gradients[0])
        received = received_by_all(self._compressors[0], first, sums)
        for rank, partition, _ in tasks if self._resolved.clamp_steps else tasks[:1]:  # each looks at it
            rank.decode(partition, *received, average.numpy())
        self._round += 1
        return average
