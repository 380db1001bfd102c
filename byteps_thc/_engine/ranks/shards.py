"""Who averages what of a piece.

A gradient has rotation blocks, which end where tensors do, and rows of embeddings. A piece is some of them in a row.
Each rank owns a shard of a piece: in an all-reduce a share of the blocks, about as many codes for every rank; in a
reduce-scatter the rank's own row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from byteps_thc._native import _core
from byteps_thc._scheme.arrays import U64
from byteps_thc._scheme.block_plan import RowSpan, Shard

#: Rotation blocks of a shard, at least, as far as blocks of _SMALLEST_BLOCK allow it. Shards end at blocks, and all
#: take as long, and as many bytes, as the largest one.
_BLOCKS_OF_A_SHARD = 16
_SMALLEST_BLOCK = 512


def block_ends(columns: int, tensors: Iterable[tuple[int, int]], rows: Iterable[RowSpan]) -> U64 | None:
    """Return where rotation blocks end between the first and the last column; None: nowhere.

    tensors: (start, stop) of what is compressed. rows: spans with rows that have scales of their own.
    """
    ends = [np.array([*itertools.chain.from_iterable(tensors)], np.int64)]
    ends.extend(np.arange(row.start + row.width - row.skipped, row.stop, row.width, dtype=np.int64) for row in rows)
    everything = np.unique(np.concatenate(ends))
    inside = everything[(everything > 0) & (everything < columns)]
    return inside.astype(np.uint64) if len(inside) else None


def blocks_of(
    columns: int, ranks: int, largest: int, tensors: Iterable[tuple[int, int]], rows: Iterable[RowSpan]
) -> _core.RotationBlocks:
    """Return the rotation blocks of a gradient, or of each row in a reduce-scatter (ranks: 1).

    ranks: how many share the blocks out. largest: the largest block. tensors, rows: see block_ends.
    """
    wanted = max(columns // (ranks * _BLOCKS_OF_A_SHARD), _SMALLEST_BLOCK) if ranks > 1 else largest
    block = min(1 << (wanted.bit_length() - 1), largest)
    return _core.RotationBlocks(columns, block, block_ends(columns, tensors, rows))


def cut_blocks(blocks: _core.RotationBlocks, pieces: int) -> list[tuple[slice, _core.RotationBlocks]]:
    """Cut a gradient into pieces of about as many codes, at blocks: columns and blocks of each. Empty ones are omitted.

    Averages do not depend on it: signs are those of the gradient.
    """
    array, offsets = blocks.array(), np.append(blocks.array()[:, 1], blocks.padded)
    cuts = _nearest(offsets, pieces)
    columns = np.append(array[:, 0], blocks.coordinates)[cuts]
    return [
        (slice(int(start), int(stop)), blocks.part(int(begin), int(end)))
        for (start, stop), (begin, end) in zip(itertools.pairwise(columns), itertools.pairwise(cuts), strict=True)
        if begin < end
    ]


def share_out(tensor: int, blocks: _core.RotationBlocks, exact_columns: Sequence[int], ranks: int) -> list[Shard]:
    """Return the shards of a piece that all ranks average.

    tensor: the random key of the gradient. blocks: of the piece. exact_columns: of the piece, ascending.
    """
    array = blocks.array()
    first, offset = (array[0, 0], array[0, 1]) if len(array) else (0, 0)
    cuts = _nearest(np.append(array[:, 1] - offset, blocks.padded), ranks)
    columns = np.append(array[:, 0] - first, blocks.coordinates)[cuts]
    exact = np.searchsorted(np.array(exact_columns, np.int64), columns)
    return [
        Shard(tensor, 0, slice(*map(int, columns[i : i + 2])), blocks.part(*map(int, cuts[i : i + 2])), slice(*at))
        for i, at in enumerate(itertools.pairwise(map(int, exact)))
    ]


def row_shards(tensors: Sequence[int], blocks: _core.RotationBlocks, exact: int) -> list[Shard]:
    """Return the shards of a piece of a reduce-scatter: a row for each rank.

    tensors: random keys of the rows. blocks: of each row of the piece. exact: values of each row that travel exactly.
    """
    columns = slice(0, blocks.coordinates)
    return [
        Shard(tensor, row, columns, blocks, slice(row * exact, (row + 1) * exact)) for row, tensor in enumerate(tensors)
    ]


def _nearest(offsets: npt.NDArray[np.int64], parts: int) -> npt.NDArray[np.int64]:
    """Return the indices of the offsets that cut 0 .. offsets[-1] into parts most evenly."""
    targets = np.arange(parts + 1) * (offsets[-1] / parts)
    cuts = np.searchsorted(offsets, targets - 0.5)
    is_nearer = (cuts > 0) & (targets - offsets[cuts - 1] < offsets[cuts] - targets)
    nearest: npt.NDArray[np.int64] = np.where(is_nearer, cuts - 1, cuts)
    return nearest
