"""torch's PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019) of n workers in one process.

It works as torch's powerSGD_hook on one bucket, by torch's own functions, with error feedback and warm start.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd


@dataclass(frozen=True)
class PowerSgd:
    """rank: of a matrix's factors. start: steps that are averaged in fp32 first; DDP's buckets need 2."""

    rank: int = 4
    start: int = 0
    min_compression_rate: float = 2.0


@dataclass
class _Matrix:
    """A tensor that is worth compressing. q: float32[1, columns, rank], kept from step to step."""

    span: slice
    rows: int
    columns: int
    q: Tensor


class PowerSgdAverager:
    """Averages float32[workers, coordinates]. shapes: of the tensors in a gradient, one after the other."""

    def __init__(self, config: PowerSgd, shapes: Sequence[torch.Size]) -> None:
        self._start = config.start
        self._step = 0
        self._residuals: Tensor | float = 0.0
        self._matrices: list[_Matrix] = []
        sent = offset = 0
        # Drawn as in torch: the same on all workers.
        random = torch.Generator().manual_seed(int(np.random.RandomState(0).randint(1_000_000_000)))
        for shape in shapes:
            rows, columns = shape[0], math.prod(shape[1:])
            rank = min(rows, columns, config.rank)
            worth, whole, compressed = power_sgd._should_compress(rows, columns, rank, config.min_compression_rate)
            sent += compressed if worth else whole
            if worth:
                q = torch.randn(1, columns, rank, generator=random)
                self._matrices.append(_Matrix(slice(offset, offset + whole), rows, columns, q))
            offset += whole
        #: For a compressed step: numbers to be summed travel up and down.
        self.bytes_both_ways = 2.0 * 4 * sent

    def average(self, gradients: Tensor) -> Tensor:
        self._step += 1
        if self._step <= self._start:
            return gradients.mean(dim=0)
        own = gradients + self._residuals
        average = own.mean(dim=0)
        for matrix in self._matrices:
            average[matrix.span] = _low_rank_average(own[:, matrix.span], matrix)
        self._residuals = own - average
        return average


def _low_rank_average(own: Tensor, matrix: _Matrix) -> Tensor:
    """One step of subspace iteration on the workers' mean, from the last step's."""
    workers = own.view(len(own), matrix.rows, matrix.columns)
    power_sgd._orthogonalize(matrix.q)
    p = (workers @ matrix.q).sum(dim=0, keepdim=True)
    power_sgd._orthogonalize(p)
    matrix.q = (workers.transpose(1, 2) @ p).mean(dim=0, keepdim=True)
    return (p @ matrix.q.transpose(1, 2)).flatten()
