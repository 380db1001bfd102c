"""Plans the pieces of a gradient before its first round: which rank averages which blocks.

A gradient has rotation blocks, which end where tensors do, and rows of embeddings. A piece is a run of them. Each rank
owns a shard of a piece: in an all-reduce a share of the blocks, about as many codes for every rank; in a reduce-scatter
the rank's own row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from byteps_thc._engine.layout import Extent, Layout, identity_of
from byteps_thc._native import _core
from byteps_thc._scheme.block_plan import MessageLayout, Shard
from byteps_thc._scheme.rank_settings import RankSettings
from byteps_thc._scheme.shares import (
    blocks_of,
    cut_blocks,
    parts_within,
    random_key,
    row_shards,
    shards_digest,
    share_out,
)

#: Columns or elements (start, stop), ascending and disjoint.
Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class PiecePlan:
    """Some columns of a gradient, `span`, which travel together.

    shards: of all ranks. up, down: messages to owners, and of owners (up: averages stay with their owners). exact:
    columns of the piece that travel exactly, in every row. holes: uncompressed elements of each row, from the piece's
    beginning. identity: arguments of Fingerprints.of().
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
    """Yield the pieces of a gradient, for all rounds. whole: one piece, whatever its size."""
    extent = layout.extent
    ranks = 1 if extent.sharded else settings.ranks
    blocks = blocks_of(extent.columns, ranks, settings.config.rotation_block, layout.tensors, extent.plan.rows)
    pieces = 1 if whole else -(-extent.rows * extent.columns // settings.config.partition_coordinates)
    for span, own in cut_blocks(blocks, pieces):
        yield _plan(layout, settings, span, own, whole)


def _plan(layout: Layout, settings: RankSettings, span: slice, blocks: _core.RotationBlocks, whole: bool) -> PiecePlan:
    extent = layout.extent
    everything = slice(0, extent.columns)
    keys = [random_key(extent.name(row, everything)) for row in range(extent.rows)]
    exact = [*parts_within(layout.exact, span)]
    columns = [column for start, stop in exact for column in range(start, stop)]
    if extent.sharded:
        shards = row_shards(keys, blocks, len(columns))
    else:
        shards = share_out(keys[0], blocks, columns, settings.ranks)
    up = MessageLayout.of(shards, settings.bits)
    names = [extent.name(row, span) for row in range(extent.rows)]
    starts = (row * extent.columns for row in range(extent.rows))
    return PiecePlan(
        span,
        extent.sharded,
        shards,
        up,
        up if settings.down_bits is None else MessageLayout.of(shards, settings.down_bits),
        exact,
        [[*parts_within(layout.cleared, slice(start + span.start, start + span.stop))] for start in starts],
        identity_of(_with_dtype(layout), names, span, f"{shards_digest(shards)} {exact}", whole=whole),
    )


def _with_dtype(layout: Layout) -> Extent:
    extent, dtype = layout.extent, str(layout.dtype).removeprefix("torch.")
    return replace(extent, label=f"{extent.label} of {dtype}", layout=f"{extent.layout} {dtype}")
