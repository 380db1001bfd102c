"""Rounds of gradients that several processes, or one, can compute alike."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
from server_oracle import ServerOracle

from byteps_thc._scheme.arrays import F32, U8, U16
from byteps_thc._scheme.compressor import Compressor, Partition
from byteps_thc._scheme.config import ThcConfig

_DIFFERENT = 16


@functools.cache
def gradient(worker: int, number: int, coordinates: int) -> F32:
    """Return a worker's gradient of a round: normal, of a scale that differs; the same again every few rounds."""
    random = np.random.default_rng([worker, number % _DIFFERENT, coordinates])
    return random.standard_normal(coordinates, np.float32) * np.float32(10.0 ** (number % 5 - 2))


class Rounds:
    """One worker's end of every round: gradients in, a digest of the averages out."""

    def __init__(self, compressor: Compressor, coordinates: Sequence[int]) -> None:
        self._compressor = compressor
        self._averages = [np.zeros(count, np.float32) for count in coordinates]
        self._partitions = [compressor.partition(f"p{i}", count, tensor=i) for i, count in enumerate(coordinates)]
        self.digests: list[str] = []

    def measure(self, gradients: Sequence[F32], number: int) -> list[Partition]:
        """Return the partitions of this round, measured."""
        for partition, flat in zip(self._partitions, gradients, strict=True):
            self._compressor.measure(partition, flat, round=number)
        return self._partitions

    def finish(self, sums: Sequence[U8 | U16]) -> None:
        """Decode the sums of all partitions and keep a digest of the averages."""
        contributions = np.full(1, self._compressor.workers, np.uint8)
        digest = hashlib.sha256()
        for partition, aggregate, average in zip(self._partitions, sums, self._averages, strict=True):
            self._compressor.decode(partition, aggregate, contributions, average)
            digest.update(average.tobytes())
        self.digests.append(digest.hexdigest())


def simulate(config: ThcConfig, coordinates: Sequence[int], *, workers: int, rounds: int) -> list[str]:
    """Return the digests of the averages of every round, computed in this process without any transport."""
    oracle, digests = ServerOracle(config, workers), []
    for number in range(rounds):
        digest = hashlib.sha256()
        for i, count in enumerate(coordinates):
            gradients = [gradient(worker, number, count) for worker in range(workers)]
            digest.update(oracle.average(gradients, name=f"p{i}", tensor=i, round=number).tobytes())
        digests.append(digest.hexdigest())
    return digests
