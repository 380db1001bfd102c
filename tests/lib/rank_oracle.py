"""Averages among ranks that decode each other's codes, to the bit: all ranks in this process, in NumPy.

block_reference.py has codes and averages; here are ends of blocks, pieces, shards, tiles of scales, and keys.
"""

import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence

import block_reference
import torch
from block_reference import Blocks
from reference import Key
from torch import Tensor

from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc._engine.parameters import saturated
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.block_plan import RowSpan
from byteps_thc._scheme.decoding.settings import RankCodes

_NARROWEST_ROW = 32


def exact_average(gradients: Sequence[Tensor]) -> Tensor:
    """Add in the order of ranks in float32, and divide by their number."""
    total = gradients[0].float()
    for gradient in gradients[1:]:
        total = total + gradient.float()
    return total / len(gradients)


class RankOracle:
    """All ranks of an engine. round: of the next gradient."""

    def __init__(self, codes: RankCodes, ranks: int, policy: CompressionPolicy | None = None) -> None:
        self.settings = codes.resolve(ranks)
        self.codes, self.ranks, self.policy = codes, ranks, policy or CompressionPolicy()
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
        """Return the averages of a reduce-scatter, [ranks, columns]; rows: of each rank, zeros if not compressed.

        tensors: compressed columns (start, stop). spans: rows of embeddings.
        """
        columns = rows[0].shape[1]
        blocks = _blocks_of(tensors, spans)
        averages = torch.zeros(rows[0].shape, dtype=torch.float32)
        for row, average in enumerate(averages):
            own = [gradient[row] for gradient in rows]
            of_row = blocks._replace(first=row * len(blocks.starts))
            pieces = self._pieces(self.ranks * columns, of_row)
            self._average(f"{key}[0:{columns}]", own, pieces, None, average)
        self.round += 1
        return saturated(averages, rows[0].dtype)

    def travels_exactly(self, part: ParameterSlice) -> bool:
        is_narrow = self.policy.bypass_elements and 0 < part.row < _NARROWEST_ROW
        return part.size < self.policy.bypass_elements or part.name in self.policy.exclude or bool(is_narrow)

    def _compress(
        self, key: str, gradients: Sequence[Tensor], compressed: Sequence[ParameterSlice], average: Tensor
    ) -> None:
        spans = [span for part in compressed if (span := part.row_span) is not None]
        blocks = _blocks_of([(part.start, part.stop) for part in compressed], spans)
        shards = [shard for piece in self._pieces(len(average), blocks) for shard in _evenly(piece, self.ranks)]
        self._average(f"{key}[0:{len(average)}]", gradients, shards, self.settings.down_bits, average)

    def _pieces(self, size: int, blocks: Blocks) -> list[Blocks]:
        return _evenly(blocks, min(-(-4 * size // self.codes.partition_bytes), len(blocks.starts)))

    def _average(
        self, name: str, gradients: Sequence[Tensor], shards: Sequence[Blocks], down_bits: int | None, average: Tensor
    ) -> None:
        own = [gradient.float().numpy() for gradient in gradients]
        key = Key(self.codes.seed, zlib.crc32(name.encode()), self.round)
        for shard in shards:
            block_reference.average(own, shard, self.settings.codes.bits, down_bits, key, average.numpy())


def _blocks_of(tensors: Iterable[tuple[int, int]], rows: Iterable[RowSpan]) -> Blocks:
    """Return the blocks of a gradient, which end at tensors and at rows of embeddings that are not narrow."""
    cuts = {
        cut
        for span in rows
        if span.width >= _NARROWEST_ROW
        for cut in range(span.start - span.skipped + span.width, span.stop, span.width)
    }
    edges = sorted({*cuts, *itertools.chain.from_iterable(tensors := [*tensors])})
    inside = {start for start in edges if any(first <= start < last for first, last in tensors)}
    return block_reference.cut(pair for pair in itertools.pairwise(edges) if pair[0] in inside)


def _evenly(blocks: Blocks, parts: int) -> list[Blocks]:
    edges = [len(blocks.starts) * part // parts for part in range(parts + 1)]
    return [blocks.part(*pair) for pair in itertools.pairwise(edges)]


class ReduceScatterOracle:
    """The ranks of one parameter group, in FSDP2's layout: row w of the gradient has rank w's shards."""

    def __init__(
        self, key: str, parameters: Sequence[str], bypassed: Sequence[str], ranks: int, codes: RankCodes
    ) -> None:
        self.key = key
        self.parameters = list(parameters)
        self.bypassed, self.ranks = bypassed, ranks
        self._oracle = RankOracle(codes, ranks)

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
