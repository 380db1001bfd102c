"""THC's average of n workers in torch, for studies: the paper's algorithm, all workers at once.

Codes are not made: the table values that a code stands for are added. Norms per rotation block, and a clamp, rounding
and sums as in the reference; only the random numbers come from torch.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from byteps_thc._base.wire.layout import MIN_ROTATION_BLOCK
from byteps_thc._native import _core
from byteps_thc._scheme.adding.tables import LookupTable
from byteps_thc._scheme.shares import even_spans

PARTITION_COORDINATES = 1 << 20  # of ServerCodes
CACHED_COORDINATES = 1 << 15
_ROUNDING = 1 << 16


@dataclass(frozen=True)
class Scheme:
    """How gradients are averaged."""

    table: LookupTable
    rotation_block: int = 8192
    rounding: Literal["independent", "stratified"] = "independent"
    error_feedback: bool = False
    #: Off: coordinates are quantized as they are, in units of their block's root mean square.
    rotation: bool = True
    #: Off: the range of a block is up to its largest magnitude on any worker.
    clamp: bool = True
    #: Averages are divided by the share of normal coordinates that clamping keeps (ResolvedCodes.decode_threshold).
    unbiased: bool = False


class Averager:
    """Averages gradients of n workers step by step; keeps the residuals.

    coordinates: of a gradient, which is cut into partitions.
    """

    def __init__(self, scheme: Scheme, coordinates: int, *, seed: int = 0) -> None:
        self.scheme = scheme
        self.residual: Tensor | None = None
        self._partitions = even_spans(coordinates, PARTITION_COORDINATES, scheme.rotation_block)
        self._generator = torch.Generator().manual_seed(seed)

    def average(self, gradients: Tensor) -> Tensor:
        """float32[workers, coordinates] -> float32[coordinates]."""
        x = gradients if self.residual is None else gradients + self.residual
        average, lost = torch.zeros_like(x[0]), torch.zeros_like(x)
        for partition in self._partitions:
            padded = -(-(partition.stop - partition.start) // MIN_ROTATION_BLOCK) * MIN_ROTATION_BLOCK
            signs = self._integers(2, (padded,)).mul_(2).sub_(1).float()
            streams = 1 if self.scheme.rounding == "stratified" else len(x)
            bits = self._integers(_ROUNDING, (streams, padded))
            average[partition], lost[:, partition] = average_partition(x[:, partition], self.scheme, signs, bits)
        if self.scheme.error_feedback:
            self.residual = lost
        return average

    def _integers(self, high: int, shape: tuple[int, ...]) -> Tensor:
        return torch.randint(high, shape, generator=self._generator, dtype=torch.int32)


def average_partition(x: Tensor, scheme: Scheme, signs: Tensor, bits: Tensor) -> tuple[Tensor, Tensor]:
    """Average of float32[workers, coordinates], and each worker's loss, of the same shape as x.

    signs: float32[padded] of +-1. bits: int32[workers, padded] of 16 random bits, or [1, padded] that workers share:
    worker i of n then adds i/n of a turn, in an order in which neighbours are far apart.
    """
    workers, coordinates = x.shape
    signs = signs if scheme.rotation else torch.ones_like(signs)
    x = torch.nn.functional.pad(x, (0, len(signs) - coordinates)) * signs
    if len(bits) == 1:
        bits = (bits + _phases(workers)) % _ROUNDING
    average, lost = torch.empty_like(x[0]), torch.empty_like(x)
    for start, count, size in runs_of_blocks(len(signs), scheme.rotation_block):
        span = slice(start, start + count * size)
        chunk = max(1, CACHED_COORDINATES // size)  # blocks that stay in a processor's cache
        blocks = x[:, span].reshape(workers, count, size).split(chunk, dim=1)
        chances = bits[:, span].reshape(len(bits), count, size).split(chunk, dim=1)
        parts = [_average_blocks(part, scheme, own) for part, own in zip(blocks, chances, strict=True)]
        average[span] = torch.cat([mean for mean, _ in parts]).flatten()
        lost[:, span] = torch.cat([error for _, error in parts], dim=1).reshape(workers, -1)
    return (average * signs)[:coordinates], (lost * signs)[:, :coordinates]


def _average_blocks(x: Tensor, scheme: Scheme, bits: Tensor) -> tuple[Tensor, Tensor]:
    """Average of [workers, blocks, size], [blocks, size], and each worker's loss."""
    table, size = scheme.table, x.shape[-1]
    max_norm = x.norm(dim=2, keepdim=True).amax(dim=0, keepdim=True)
    rotate = hadamard if scheme.rotation else functools.partial(torch.mul, other=math.sqrt(size))
    rotated = rotate(x)
    limit = max_norm * table.threshold if scheme.clamp else rotated.abs().amax(dim=(0, 2), keepdim=True)
    safe = limit.clamp_min(1e-30)
    u = (rotated.clamp(-limit, limit) / safe + 1) * (0.5 * table.granularity)
    values, cells = _looked_up(table)
    cell = cells[u.long().clamp(0, table.granularity)]
    low = values[cell]
    gap = (values[1:] - values[:-1])[cell]
    u = low + gap * ((bits + 0.5) * (1 / _ROUNDING) < (u - low) / gap)
    sent = (u * (2 / table.granularity) - 1) * limit
    left = 1 - table.p if scheme.unbiased else 1.0
    return rotate(sent.mean(dim=0)) / (size * left), rotate(rotated - sent) / size


def runs_of_blocks(padded: int, rotation_block: int) -> Iterator[tuple[int, int, int]]:
    """(start, blocks, size) of runs of blocks of equal size."""
    start = 0
    for size, blocks in itertools.groupby(_core.block_sizes(padded, rotation_block).tolist()):
        count = len(list(blocks))
        yield start, count, size
        start += count * size


@functools.cache
def _looked_up(table: LookupTable) -> tuple[Tensor, Tensor]:
    """T as float32, and the largest i with T[i] <= cell < g for every cell 0 .. g of the grid."""
    values = torch.tensor(table.values, dtype=torch.float32)
    cells = torch.searchsorted(values[:-1], torch.arange(table.granularity + 1.0), right=True) - 1
    return values, cells


@functools.cache
def _phases(workers: int) -> Tensor:
    """int32[workers, 1]: floor(position * 2^16 / workers), positions in bit-reversed order."""
    width = (workers - 1).bit_length()
    order = sorted(range(workers), key=lambda i: int(f"{i:0{max(width, 1)}b}"[::-1], 2))
    positions = torch.tensor([order.index(worker) for worker in range(workers)], dtype=torch.int32)
    return (positions * _ROUNDING // workers)[:, None]


def hadamard(x: Tensor) -> Tensor:
    """H x along the last dimension, a power of two; not normalised. As two matrix products: H_ab = H_a (x) H_b."""
    size = x.shape[-1]
    left = 1 << ((size.bit_length() - 1) // 2)
    matrix = x.reshape(-1, left, size // left)
    return (_hadamard_matrix(left) @ matrix @ _hadamard_matrix(size // left)).view(x.shape)


@functools.cache
def _hadamard_matrix(size: int) -> Tensor:
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix
