"""Who averages what of a piece, and the messages that it travels in.

Each rank owns a shard. In an all-reduce that is a share of the rotation blocks of the piece, about as many codes for
every rank; in a reduce-scatter it is the rank's own row. Blocks end where tensors do, and rows of embeddings.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from byteps_thc import _core
from byteps_thc.arrays import U64
from byteps_thc.block_plan import RowSpan

HEADER_BYTES = 16
_WORD_BYTES = 4
_ALIGNED_BYTES = 16
#: Rotation blocks of a shard, at least, as far as blocks of _SMALLEST_BLOCK allow it. Shards end at blocks, and all
#: take as long, and as many bytes, as the largest one.
_BLOCKS_OF_A_SHARD = 16
_SMALLEST_BLOCK = 512


@dataclass(frozen=True)
class Shard:
    """What a rank owns of a piece. tensor: the random key. row: of the gradient. columns: of the piece, and exact: of
    the values of the piece that travel exactly: those that `blocks` and this shard have.
    """

    tensor: int
    row: int
    columns: slice
    blocks: _core.RotationBlocks
    exact: slice


@dataclass(frozen=True)
class MessageLayout:
    """A message to an owner, or of an owner: 16 bytes of header, scales, exact values, codes. All messages of a piece
    have the size of the longest. scales, exact: numbers of float32. code_bytes: of packed codes.
    """

    scales: int
    exact: int
    code_bytes: int

    @classmethod
    def of(cls, shards: Sequence[Shard], bits: int) -> MessageLayout:
        """Return the messages of these shards with codes of `bits` bits."""
        return cls(
            max(len(shard.blocks) for shard in shards),
            max(shard.exact.stop - shard.exact.start for shard in shards),
            max(_core.code_bytes(shard.blocks.padded, bits) for shard in shards),
        )

    @property
    def exact_at(self) -> int:
        """Offset of the exact values, bytes."""
        return HEADER_BYTES + _WORD_BYTES * self.scales

    @property
    def codes_at(self) -> int:
        """Offset of the codes, bytes."""
        return self.exact_at + _WORD_BYTES * self.exact

    @property
    def size_bytes(self) -> int:
        """Bytes of a message."""
        return -(-(self.codes_at + self.code_bytes) // _ALIGNED_BYTES) * _ALIGNED_BYTES


def block_ends(columns: int, tensors: Iterable[tuple[int, int]], rows: Iterable[RowSpan]) -> U64 | None:
    """Return where rotation blocks end between the first and the last column; None: nowhere.

    tensors: (start, stop) of what is compressed. rows: spans with rows that have scales of their own.
    """
    ends = [np.array([*itertools.chain.from_iterable(tensors)], np.int64)]
    ends.extend(np.arange(row.start + row.width - row.skipped, row.stop, row.width, dtype=np.int64) for row in rows)
    everything = np.unique(np.concatenate(ends))
    inside = everything[(everything > 0) & (everything < columns)]
    return inside.astype(np.uint64) if len(inside) else None


def shared_rotation_block(columns: int, ranks: int, largest: int) -> int:
    """Return the rotation block of a piece of so many columns that ranks share out: a power of two up to `largest`."""
    wanted = max(columns // (ranks * _BLOCKS_OF_A_SHARD), _SMALLEST_BLOCK)
    return min(1 << (wanted.bit_length() - 1), largest)


def share_out(name: str, blocks: _core.RotationBlocks, exact_columns: Sequence[int], ranks: int) -> list[Shard]:
    """Return the shards of a piece that all ranks average. exact_columns: of the piece, ascending."""
    tensor, array = zlib.crc32(name.encode()), blocks.array()
    begins = np.append(array[:, 1], blocks.padded)  # codes in front of each block
    targets = np.arange(ranks + 1) * (blocks.padded / ranks)
    cuts = np.searchsorted(begins, targets - 0.5)
    # The nearer one of two blocks' ends.
    cuts = np.where((cuts > 0) & (targets - begins[cuts - 1] < begins[cuts] - targets), cuts - 1, cuts)
    columns = np.append(array[:, 0], blocks.coordinates)[cuts]
    exact = np.searchsorted(np.array(exact_columns, np.int64), columns)
    return [
        Shard(tensor, 0, slice(*map(int, columns[i : i + 2])), blocks.part(*map(int, cuts[i : i + 2])), slice(*at))
        for i, at in enumerate(itertools.pairwise(map(int, exact)))
    ]


def row_shards(names: Sequence[str], blocks: _core.RotationBlocks, exact: int) -> list[Shard]:
    """Return the shards of a piece of a reduce-scatter: a row for each rank. names: of the rows. exact: values of each
    row that travel exactly.
    """
    return [
        Shard(
            zlib.crc32(name.encode()), row, slice(0, blocks.coordinates), blocks, slice(row * exact, (row + 1) * exact)
        )
        for row, name in enumerate(names)
    ]
