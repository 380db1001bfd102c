"""Averages through servers, by the package's kernels, all workers and the server in this process."""

import numpy as np
import torch
from torch import Tensor

from byteps_thc import Compressor
from byteps_thc._base.arrays import value_dtype
from byteps_thc._native import _core
from byteps_thc._scheme.adding.compressor import Partition
from byteps_thc._scheme.adding.server_codes import ResolvedCodes


class ServersAverager:
    """Averages gradients of all workers, whole, as one partition."""

    def __init__(self, resolved: ResolvedCodes, coordinates: int) -> None:
        self._resolved = resolved
        self._compressors = [
            Compressor(resolved, workers=resolved.workers, worker=worker, threads=1)
            for worker in range(resolved.workers)
        ]
        self.partitions: list[Partition] = [own.partition("gradient", coordinates) for own in self._compressors]
        self._contributions = np.array([resolved.workers], np.uint16)
        self._round = 0

    def average(self, gradients: Tensor) -> Tensor:
        """Average float32[workers, coordinates]."""
        tasks = list(zip(self._compressors, self.partitions, gradients.numpy(), strict=True))
        norms = np.maximum.reduce([own.measure(partition, x, round=self._round) for own, partition, x in tasks])
        table, first = self._resolved.table, self.partitions[0]
        sums = np.zeros(first.padded, value_dtype(self._resolved.value_bits))
        for own, partition, _ in tasks:
            _core.lookup_sum(own.encode(partition, norms), table.array, sums, bits=table.bits, add=True)
        average = torch.empty_like(gradients[0])
        self._compressors[0].decode(first, sums, self._contributions, average.numpy())
        self._round += 1
        return average
