"""Averages among ranks that decode each other's codes, to the bit: all ranks in this process, in NumPy.

Codes and averages are nearest_reference.py's. Here is where rotation blocks of gradients end, and what keys gradients
have. How they are cut into pieces, and who owns which shard of a piece, makes no difference to an average, so nothing
here knows of that.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence

import nearest_reference
import numpy as np
import torch
from reference import F32, Key
from torch import Tensor

from byteps_thc import ThcConfig
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc._engine.parameters import saturated
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.block_plan import RowSpan
from byteps_thc._scheme.rank_settings import RankSettings
from byteps_thc._scheme.tables.points import lloyd_max, staggered

_BLOCKS_OF_A_SHARD, _SMALLEST_BLOCK = 16, 512


def ends_of(tensors: Iterable[tuple[int, int]], rows: Iterable[RowSpan], size: int) -> list[int]:
    """Return where rotation blocks end within a gradient: at tensors and rows of embeddings."""
    ends = {edge for tensor in tensors for edge in tensor}
    for span in rows:
        ends |= set(range(span.start - span.skipped + span.width, span.stop, span.width))
    return sorted(end for end in ends if 0 < end < size)


def exact_average(gradients: Sequence[Tensor]) -> Tensor:
    """Add in the order of ranks in float32, and divide by their number."""
    total = gradients[0].float()
    for gradient in gradients[1:]:
        total = total + gradient.float()
    return total / len(gradients)


class RankOracle:
    """All ranks of an engine. round: of the next gradient."""

    def __init__(self, config: ThcConfig, ranks: int, policy: CompressionPolicy | None = None) -> None:
        settings = RankSettings.of(config, ranks)
        assert settings.down_bits is not None
        self.config, self.ranks, self.policy = config, ranks, policy or CompressionPolicy()
        self.up = [staggered(settings.bits, rank, ranks) for rank in range(ranks)]
        self.down = lloyd_max(settings.down_bits)
        self.round = 0

    def average(self, buffers: Sequence[GradientBuffer]) -> Tensor:
        """Return the average of a buffer, given as each rank has it, in a step that compresses."""
        first, gradients = buffers[0], [buffer.gradient for buffer in buffers]
        compressed = [part for part in first.parameters if not self.travels_exactly(part)]
        average = exact_average(gradients)
        if compressed:
            self._compress(first.key, gradients, compressed, average)
        self.round += 1
        return saturated(average, first.gradient.dtype)

    def rows(
        self, key: str, rows: Sequence[Tensor], tensors: Sequence[tuple[int, int]], spans: Sequence[RowSpan] = ()
    ) -> Tensor:
        """Return the averages of all rows of a reduce-scatter, [ranks, columns].

        rows: [ranks, columns] of each rank, zeros in what is not compressed. tensors: columns (start, stop) of those
        that are. spans: rows of embeddings.
        """
        columns = rows[0].shape[1]
        ends = ends_of(tensors, spans, columns)
        averages = [
            self._average(
                f"{key}[{row},0:{columns}]",
                [gradient[row] for gradient in rows],
                ends,
                self.config.rotation_block,
                down=False,
            )
            for row in range(self.ranks)
        ]
        self.round += 1
        return saturated(torch.stack(averages), rows[0].dtype)

    def travels_exactly(self, part: ParameterSlice) -> bool:
        return part.size < self.policy.bypass_elements or part.name in self.policy.exclude

    def _compress(
        self, key: str, gradients: Sequence[Tensor], compressed: Sequence[ParameterSlice], average: Tensor
    ) -> None:
        """Write the averages of what is compressed, and zeros between parameters."""
        size = len(average)
        zeroed = [torch.zeros(size, dtype=gradient.dtype) for gradient in gradients]
        there = torch.zeros(size, dtype=torch.bool)
        for part in compressed:
            there[part.start : part.stop] = True
            for gradient, own in zip(gradients, zeroed, strict=True):
                own[part.start : part.stop] = gradient[part.start : part.stop]
        tensors = [(part.start, part.stop) for part in compressed]
        spans = [span for part in compressed if (span := part.row_span) is not None]
        wanted = max(size // (self.ranks * _BLOCKS_OF_A_SHARD), _SMALLEST_BLOCK)
        block = min(1 << (wanted.bit_length() - 1), self.config.rotation_block)
        whole = self._average(f"{key}[0:{size}]", zeroed, ends_of(tensors, spans, size), block, down=True)
        average[there] = whole[there]

    def _average(self, name: str, gradients: Sequence[Tensor], ends: list[int], block: int, *, down: bool) -> Tensor:
        own: list[F32] = [gradient.float().numpy() for gradient in gradients]
        blocks = nearest_reference.cut(len(own[0]), block, ends)
        key = Key(self.config.seed, zlib.crc32(name.encode()), self.round)
        with np.errstate(invalid="ignore"):
            if down:
                return torch.from_numpy(nearest_reference.average(own, blocks, self.up, self.down, key))
            pairs = zip(own, self.up, strict=True)
            sent = [nearest_reference.encode(gradient, blocks, up, key, down=False) for gradient, up in pairs]
            return torch.from_numpy(nearest_reference.decode(sent, self.up, blocks, key, down=False))


class ReduceScatterOracle:
    """The ranks of one parameter group, in FSDP2's layout: row w of the gradient has rank w's shards."""

    def __init__(
        self, key: str, parameters: Sequence[str], bypassed: Sequence[str], ranks: int, config: ThcConfig
    ) -> None:
        self.key = key
        self.parameters = list(parameters)
        self.bypassed = bypassed
        self.ranks = ranks
        self._oracle = RankOracle(config, ranks)

    def averages(self, gradients: Sequence[Mapping[str, Tensor]], round: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the averages of compressed parameters, in `dtype`; gradients: of every rank."""
        rows = [self._rows([own[name] for name in self.parameters]).to(dtype) for own in gradients]
        edges = [0, *itertools.accumulate(self._widths(gradients[0]))]
        places = zip(self.parameters, itertools.pairwise(edges), strict=True)
        tensors = [place for name, place in places if name not in self.bypassed]
        self._oracle.round = round
        return self._parameters_of(self._oracle.rows(self.key, rows, tensors), gradients[0])

    def _rows(self, gradients: list[Tensor]) -> Tensor:
        """torch's own layout; bypassed parameters are zeros."""
        kept = [g if name not in self.bypassed else g * 0 for name, g in zip(self.parameters, gradients, strict=True)]
        return torch._chunk_cat(kept, dim=0, num_chunks=self.ranks)

    def _widths(self, shapes: Mapping[str, Tensor]) -> list[int]:
        return [-(-shapes[n].shape[0] // self.ranks) * shapes[n][0].numel() for n in self.parameters]

    def _parameters_of(self, rows: Tensor, shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Cut rows into parameters, padding removed."""
        parts = dict(zip(self.parameters, rows.split(self._widths(shapes), dim=1), strict=True))
        return {
            name: part.reshape(-1)[: shapes[name].numel()].view(shapes[name].shape)
            for name, part in parts.items()
            if name not in self.bypassed
        }
