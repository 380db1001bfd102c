"""What is known of the pieces of a gradient before its first round: who averages what.

A gradient has rotation blocks, which end where tensors do, and rows of embeddings. A piece is some of them in a row.
Each rank owns a shard of a piece: in an all-reduce a share of the blocks, about as many codes for every rank; in a
reduce-scatter the rank's own row.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from byteps_thc._engine.layout import Extent, Layout, identity_of
from byteps_thc._native import _core
from byteps_thc._scheme.arrays import U64
from byteps_thc._scheme.block_plan import MessageLayout, RowSpan, Shard
from byteps_thc._scheme.rank_settings import RankSettings

#: Columns or elements (start, stop), ascending and disjoint.
Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class PiecePlan:
    """Some columns of a gradient, `span`, which travel together.

    shards: of all ranks. up, down: messages to owners, and of owners (up: averages stay with their owners). exact:
    columns of the piece that travel exactly, in every row. holes: of each row, all that is not compressed, counted from
    the beginning of the piece. identity: arguments of Fingerprints.of().
    """

    span: slice
    sharded: bool
    shards: Sequence[Shard]
    up: MessageLayout
    down: MessageLayout
    exact: Spans
    holes: Sequence[Spans]
    identity: tuple[Sequence[str], int, str, str]


def piece_plans(layout: Layout, settings: RankSettings, *, whole: bool = False) -> Iterator[PiecePlan]:
    """Give the pieces of a gradient, for all rounds. whole: one piece, whatever its size."""
    extent = layout.extent
    ranks = 1 if extent.sharded else settings.ranks
    blocks = blocks_of(extent.columns, ranks, settings.config.rotation_block, layout.tensors, extent.plan.rows)
    pieces = 1 if whole else -(-extent.rows * extent.columns // settings.config.partition_coordinates)
    for span, own in cut_blocks(blocks, pieces):
        yield _plan(layout, settings, span, own, whole)


def _plan(layout: Layout, settings: RankSettings, span: slice, blocks: _core.RotationBlocks, whole: bool) -> PiecePlan:
    extent = layout.extent
    everything = slice(0, extent.columns)
    keys = [zlib.crc32(extent.name(row, everything).encode()) for row in range(extent.rows)]
    exact = [*_within(layout.exact, span)]
    columns = [column for start, stop in exact for column in range(start, stop)]
    if extent.sharded:
        shards = row_shards(keys, blocks, len(columns))
    else:
        shards = share_out(keys[0], blocks, columns, settings.ranks)
    up = MessageLayout.of(shards, settings.bits)
    starts = (row * extent.columns for row in range(extent.rows))
    return PiecePlan(
        span,
        extent.sharded,
        shards,
        up,
        up if settings.down_bits is None else MessageLayout.of(shards, settings.down_bits),
        exact,
        [[*_within(layout.cleared, slice(start + span.start, start + span.stop))] for start in starts],
        identity_of(_with_dtype(layout), [extent.name(row, span) for row in range(extent.rows)], span, whole=whole),
    )


def _with_dtype(layout: Layout) -> Extent:
    """Return the extent of a gradient, another one for each type."""
    extent, dtype = layout.extent, str(layout.dtype).removeprefix("torch.")
    return replace(extent, label=f"{extent.label} of {dtype}", layout=f"{extent.layout} {dtype}")


def _within(spans: Iterable[tuple[int, int]], window: slice) -> Iterator[tuple[int, int]]:
    """Give the parts of (start, stop) in a window, counted from its beginning."""
    for start, stop in spans:
        if start < window.stop and stop > window.start:
            yield max(start, window.start) - window.start, min(stop, window.stop) - window.start


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
