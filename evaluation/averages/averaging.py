"""THC's average of n workers in torch, for studies: the algorithm of tests/lib/reference.py, all workers at once.

Codes are not made: the table values that a code stands for are added. Norms per rotation block, and a clamp, rounding
and sums as in the reference; only the random numbers come from torch. Runs on any device.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import torch
from reference import block_sizes
from torch import Tensor

from byteps_thc.block_plan import ends_within
from byteps_thc.pipeline.partitioning import even_spans
from byteps_thc.tables import LookupTable
from byteps_thc.wire.layout import MIN_ROTATION_BLOCK

PARTITION_COORDINATES = 1 << 20  # ThcConfig's default
#: A group's scale is this many times the block's norm at most; its 8 bits count steps of a 255th of that.
LARGEST_SCALE = 6.0
CACHED_COORDINATES = 1 << 15
_ROUNDING = 1 << 16


@dataclass(frozen=True)
class Table:
    """Values 0 = T[0] < ... < T[-1] = g, and the clamp in units of a block's norm (or a group's scale)."""

    values: tuple[int, ...]
    threshold: float

    @classmethod
    def of(cls, table: LookupTable) -> Table:
        return cls(table.values, table.threshold)

    @property
    def granularity(self) -> int:
        return self.values[-1]

    @property
    def p(self) -> float:
        """Fraction of normal coordinates that is clamped."""
        return 2 * (1 - NormalDist().cdf(self.threshold))


@dataclass(frozen=True)
class Scheme:
    """How gradients are averaged."""

    table: Table
    rotation_block: int = 8192
    rounding: Literal["independent", "stratified"] = "independent"
    error_feedback: bool = False
    #: Full blocks of a partition take rows of 64 coordinates in turn, instead of each a contiguous piece.
    interleaved: bool = False
    #: Coordinates of a rotated block that share a scale of 8 bits, their largest magnitude on any worker; 0: none.
    scale_group: int = 0
    #: Off: coordinates are quantized as they are, in units of their block's root mean square.
    rotation: bool = True
    #: Off: the range of a block is up to its largest magnitude on any worker.
    clamp: bool = True
    #: Averages are divided by what clamping leaves of normal coordinates (ResolvedConfig.decode_threshold).
    unbiased: bool = False

    @property
    def bits_up(self) -> float:
        """Bits that a worker sends per coordinate, packed as tightly as can be: codes, norms and scales."""
        scales = 8 / self.scale_group if self.scale_group else 0.0
        return math.log2(len(self.table.values)) + 32 / self.rotation_block + scales


class Averager:
    """Averages gradients of n workers step by step; keeps the residuals.

    spans: what is rotated and sent by itself (a bucket, a tensor), later cut into partitions. ends: where rotation
    blocks end, besides (block_ends.py).
    """

    def __init__(self, scheme: Scheme, spans: Sequence[slice], *, ends: Sequence[int] = (), seed: int = 0) -> None:
        self.scheme = scheme
        self._ends = ends
        self.residual: Tensor | None = None
        self._partitions = [
            slice(span.start + part.start, span.start + part.stop)
            for span in spans
            for part in even_spans(span.stop - span.start, PARTITION_COORDINATES, scheme.rotation_block)
        ]
        self._seed = seed
        self._generator: torch.Generator | None = None

    def average(self, gradients: Tensor) -> Tensor:
        """float32[workers, coordinates] -> float32[coordinates]."""
        if self._generator is None:
            self._generator = torch.Generator(gradients.device).manual_seed(self._seed)
        x = gradients if self.residual is None else gradients + self.residual
        average, lost = torch.zeros_like(x[0]), torch.zeros_like(x)
        for partition in self._partitions:
            padded = -(-(partition.stop - partition.start) // MIN_ROTATION_BLOCK) * MIN_ROTATION_BLOCK
            signs = self._integers(2, (padded,), x.device).mul_(2).sub_(1).float()
            bits = self._integers(_ROUNDING, (self._streams(len(x)), padded), x.device)
            average[partition], lost[:, partition] = average_partition(
                x[:, partition], self.scheme, signs, bits, ends_within(self._ends, partition)
            )
        if self.scheme.error_feedback:
            self.residual = lost
        return average

    def _streams(self, workers: int) -> int:
        return 1 if self.scheme.rounding == "stratified" else workers

    def _integers(self, high: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
        return torch.randint(high, shape, generator=self._generator, device=device, dtype=torch.int32)


def average_partition(
    x: Tensor, scheme: Scheme, signs: Tensor, bits: Tensor, ends: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Average of float32[workers, coordinates], and what each worker lost, of the same shape as x.

    signs: float32[padded] of +-1. bits: int32[workers, padded] of 16 random bits, or [1, padded] that workers share:
    worker i of n then adds i/n of a turn, in an order in which neighbours are far apart. ends: of blocks.
    """
    workers, coordinates = x.shape
    signs = signs if scheme.rotation else torch.ones_like(signs)
    x = torch.nn.functional.pad(x, (0, len(signs) - coordinates)) * signs
    if len(bits) == 1:
        bits = (bits + _phases(workers).to(bits.device)) % _ROUNDING
    average, lost = torch.empty_like(x[0]), torch.empty_like(x)
    for start, count, size in _runs(len(signs), scheme.rotation_block, ends):
        span = slice(start, start + count * size)
        interleaved = scheme.interleaved and count > 1
        # A few blocks at a time stay in a processor's cache; a GPU takes all at once.
        chunk = max(1, CACHED_COORDINATES // size) if x.device.type == "cpu" else count
        blocks = _cut(x[:, span], count, interleaved).split(chunk, dim=1)
        chances = _cut(bits[:, span], count, interleaved).split(chunk, dim=1)
        parts = [_average_blocks(part, scheme, own) for part, own in zip(blocks, chances, strict=True)]
        average[span] = _join(torch.cat([mean for mean, _ in parts])[None], interleaved)[0]
        lost[:, span] = _join(torch.cat([error for _, error in parts], dim=1), interleaved)
    return (average * signs)[:coordinates], (lost * signs)[:, :coordinates]


def _average_blocks(x: Tensor, scheme: Scheme, bits: Tensor) -> tuple[Tensor, Tensor]:
    """Average of [workers, blocks, size], [blocks, size], and what each worker lost."""
    table, size = scheme.table, x.shape[-1]
    max_norm = x.norm(dim=2, keepdim=True).amax(dim=0, keepdim=True)
    rotate = hadamard if scheme.rotation else functools.partial(torch.mul, other=math.sqrt(size))
    rotated = rotate(x)
    limit = max_norm * table.threshold if scheme.clamp else rotated.abs().amax(dim=(0, 2), keepdim=True)
    if scheme.scale_group:
        group = min(scheme.scale_group, size)
        groups = rotated.view(*rotated.shape[:2], -1, group)
        largest = groups.abs().amax(dim=(0, 3), keepdim=True)
        step = max_norm.unsqueeze(3) * (LARGEST_SCALE / 255)
        scale = (largest / step.clamp_min(1e-30)).ceil().clamp(1, 255) * step
        limit = (scale * table.threshold).expand(1, -1, -1, group).reshape(1, *x.shape[1:])
    safe = limit.clamp_min(1e-30)
    u = (rotated.clamp(-limit, limit) / safe + 1) * (0.5 * table.granularity)
    values, cells = _on_device(table, x.device)
    cell = cells[u.long().clamp(0, table.granularity)]
    low = values[cell]
    gap = (values[1:] - values[:-1])[cell]
    u = low + gap * ((bits + 0.5) * (1 / _ROUNDING) < (u - low) / gap)
    sent = (u * (2 / table.granularity) - 1) * limit
    left = 1 - table.p if scheme.unbiased else 1.0
    return rotate(sent.mean(dim=0)) / (size * left), rotate(rotated - sent) / size


def _runs(padded: int, rotation_block: int, ends: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(start, blocks, size) of runs of blocks of equal size."""
    start = 0
    for size, blocks in itertools.groupby(block_sizes(padded, rotation_block, ends)):
        count = len(list(blocks))
        yield start, count, size
        start += count * size


def _cut(x: Tensor, blocks: int, interleaved: bool) -> Tensor:
    """[workers, blocks * size] -> [workers, blocks, size]."""
    if not interleaved:
        return x.reshape(len(x), blocks, -1)
    return x.reshape(len(x), -1, blocks, MIN_ROTATION_BLOCK).transpose(1, 2).reshape(len(x), blocks, -1)


def _join(x: Tensor, interleaved: bool) -> Tensor:
    """Inverse of _cut."""
    if not interleaved:
        return x.reshape(len(x), -1)
    return x.reshape(len(x), x.shape[1], -1, MIN_ROTATION_BLOCK).transpose(1, 2).reshape(len(x), -1)


@functools.cache
def _on_device(table: Table, device: torch.device) -> tuple[Tensor, Tensor]:
    """T as float32, and the largest i with T[i] <= cell < g for every cell 0 .. g of the grid."""
    values = torch.tensor(table.values, dtype=torch.float32)
    cells = torch.searchsorted(values[:-1], torch.arange(table.granularity + 1.0), right=True) - 1
    return values.to(device), cells.to(device)


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
    return (_hadamard_matrix(left, x.device) @ matrix @ _hadamard_matrix(size // left, x.device)).view(x.shape)


@functools.cache
def _hadamard_matrix(size: int, device: torch.device) -> Tensor:
    matrix = torch.ones(1, 1, device=device)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix
