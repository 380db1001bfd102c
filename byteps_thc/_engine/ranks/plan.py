"""What is known of the pieces of a gradient before its first round, wherever they are compressed."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from byteps_thc._engine.layout import Layout
from byteps_thc._engine.piece import Extent, identity_of
from byteps_thc._engine.ranks.shards import blocks_of, cut_blocks, row_shards, share_out
from byteps_thc._native import _core
from byteps_thc._scheme.block_plan import MessageLayout, Shard
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
