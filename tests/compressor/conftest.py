"""Workers and an aggregator in one process: what the network would do, in three lines."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import reference
from named_compressor import NamedCompressor

from byteps_thc import ThcConfig, _core
from byteps_thc.arrays import F32, everybody, value_dtype
from byteps_thc.compressor import Partition

Aggregate = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]


class Workers:
    """n compressors that exchange norms and codes directly."""

    def __init__(self, config: ThcConfig, workers: int) -> None:
        self.compressors = [NamedCompressor(config, workers=workers, worker=worker) for worker in range(workers)]

    def encode(self, gradients: list[npt.NDArray[np.float32]], *, round: int = 1, name: str = "w") -> list[Partition]:
        pairs = list(zip(self.compressors, gradients, strict=True))
        partitions = [worker.begin(name, gradient, tensor=0, round=round) for worker, gradient in pairs]
        maxima = reference.max_norms([partition.norms for partition in partitions])
        for worker, partition in zip(self.compressors, partitions, strict=True):
            worker.encode(partition, maxima)
        return partitions

    def aggregate(self, partitions: list[Partition]) -> Aggregate:
        first = self.compressors[0]
        aggregate = np.zeros(partitions[0].padded, value_dtype(first.resolved.value_bits))
        for worker, partition in enumerate(partitions):
            _core.lookup_sum(partition.codes, first.table.array, aggregate, bits=first.config.code_bits, add=worker > 0)
        return aggregate

    def decode(self, partition: Partition, aggregate: Aggregate, contributions: int, worker: int = 0) -> F32:
        compressor = self.compressors[worker]
        out = np.full(partition.coordinates, np.nan, np.float32)
        compressor.decode(partition, aggregate, everybody(contributions), out)
        return out

    def average(self, gradients: list[npt.NDArray[np.float32]], *, round: int = 1, name: str = "w") -> F32:
        """The average gradient as worker 0 decodes it."""
        partitions = self.encode(gradients, round=round, name=name)
        return self.decode(partitions[0], self.aggregate(partitions), len(gradients))


@pytest.fixture(scope="session")
def workers_of() -> type[Workers]:
    """The class Workers; a conftest cannot be imported."""
    return Workers
