"""THC through a server that packets get lost to and from, n workers in one process: each may get another average."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from byteps_thc import Compressor, ServerCodes
from byteps_thc._base.arrays import value_dtype
from byteps_thc._native import _core

CODES_PER_PACKET = 1024


@dataclass(frozen=True)
class Losses:
    """Losses of packets and workers.

    lost: share of the packets of codes, and of sums to each worker; norms are repeated until they arrive. stragglers:
    workers, others in each round, that are missing from all its sums. needed: contributions without which a packet has
    no sum, for any worker. The server waits for possible contributions only.
    """

    lost: float = 0.0
    stragglers: int = 0
    needed: int = 1


class LossyAverager:
    """Averages the workers' gradients, whole, as one partition, on the package's kernels.

    missing: share of the workers' contributions that workers did not get, so far. seed: for the losses.
    """

    def __init__(self, config: ServerCodes, workers: int, coordinates: int, losses: Losses, seed: int) -> None:
        self._resolved = resolved = config.resolve(workers)
        self._compressors = [
            Compressor(resolved, workers=workers, worker=worker, threads=1) for worker in range(workers)
        ]
        self._partitions = [own.partition("gradient", coordinates) for own in self._compressors]
        self._losses, self._random = losses, np.random.default_rng(seed)
        self._round, self._missing = 0, 0.0

    @property
    def missing(self) -> float:
        return self._missing / max(self._round, 1)

    def average(self, gradients: Tensor) -> Tensor:
        """float32[workers, coordinates] -> float32[workers, coordinates], what each decodes."""
        workers, packets = len(gradients), -(-self._partitions[0].padded // CODES_PER_PACKET)
        present = self._arrives(workers, packets)
        straggling = self._random.choice(workers, self._losses.stragglers, replace=False)
        present[straggling] = False
        sums = self._sums(gradients, present, straggling)
        contributions = present.sum(axis=0, dtype=np.uint8)
        contributions[contributions < self._losses.needed] = 0
        got = self._arrives(workers, packets)
        averages = torch.empty_like(gradients)
        for own, partition, out, mine in zip(self._compressors, self._partitions, averages, got, strict=True):
            own.decode(partition, sums, contributions * mine, out.numpy(), codes_per_chunk=CODES_PER_PACKET)
        self._round += 1
        self._missing += 1 - float((contributions * got).mean()) / workers
        return averages

    def _arrives(self, workers: int, packets: int) -> np.ndarray:
        arrives: np.ndarray = self._random.random((workers, packets)) >= self._losses.lost
        return arrives

    def _sums(self, gradients: Tensor, present: np.ndarray, straggling: np.ndarray) -> np.ndarray:
        """Sums of table values, in each packet over the present workers."""
        table = self._resolved.table
        norms = [
            own.measure(partition, gradient, round=self._round)
            for own, partition, gradient in zip(self._compressors, self._partitions, gradients.numpy(), strict=True)
        ]
        maxima = np.maximum.reduce([own for worker, own in enumerate(norms) if worker not in straggling])
        sums = np.zeros(self._partitions[0].padded, value_dtype(self._resolved.value_bits))
        values = np.empty_like(sums)
        for own, partition, mine in zip(self._compressors, self._partitions, present, strict=True):
            _core.lookup_sum(own.encode(partition, maxima), table.array, values, bits=table.bits, add=False)
            sums += values * np.repeat(mine, CODES_PER_PACKET)[: len(values)]
        return sums
