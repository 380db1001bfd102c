"""Plans the pieces of a gradient before its first round: which rank averages which blocks.

A gradient has blocks of 64 elements, which end where compressed tensors and rows of embeddings do. A piece is a run of
blocks. Each rank owns a shard of a piece: in an all-reduce as many blocks as every other rank, in a reduce-scatter the
rank's own row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from byteps_thc._engine.layout import Layout, Spans, identity_of
from byteps_thc._native import _core
from byteps_thc._scheme.decoding.codec import MessageLayout
from byteps_thc._scheme.decoding.settings import ResolvedRankCodes
from byteps_thc._scheme.shares import (
    Shard,
    block_words,
    cut_blocks,
    partition_name,
    parts_within,
    random_key,
    row_shards,
    shards_digest,
    share_out,
    without_gaps,
)


@dataclass(frozen=True)
class PiecePlan:
    """Some columns of a gradient, `span`, which travel together.

    shards: of all ranks. up, down: messages to owners, and of owners (up: averages stay with their owners). exact:
    columns that travel exactly, in every row; others without a block are padding. identity: for Fingerprints.of().
    """

    span: slice
    sharded: bool
    shards: Sequence[Shard]
    up: MessageLayout
    down: MessageLayout
    exact: Spans
    identity: tuple[Sequence[str], int, str, str]


def piece_plans(layout: Layout, settings: ResolvedRankCodes, *, whole: bool = False) -> Iterator[PiecePlan]:
    """Yield the pieces of a gradient, for all rounds. whole: one piece, whatever its size."""
    extent = layout.extent
    words = block_words(layout.tensors, extent.plan.rows)
    tables = [words]
    if extent.sharded:  # later ranks' shards of a parameter may be shorter than the first rank's
        tables = [without_gaps(words, layout.cleared, row * extent.columns) for row in range(extent.rows)]
    pieces = 1 if whole else -(-extent.rows * extent.columns * 4 // settings.codes.partition_bytes)
    for span, own in cut_blocks(tables, extent.columns, pieces):
        yield _plan(layout, settings, span, own, whole)


def _plan(
    layout: Layout, settings: ResolvedRankCodes, span: slice, tables: Sequence[_core.BlockTable], whole: bool
) -> PiecePlan:
    extent, dtype = layout.extent, str(layout.dtype).removeprefix("torch.")
    # The rows have one key, too: their blocks have different numbers.
    key = random_key(partition_name(extent.key, slice(0, extent.columns)))
    exact = [*parts_within(layout.exact, span)]
    values = sum(stop - start for start, stop in exact)
    shards = row_shards(key, tables, values) if extent.sharded else share_out(key, tables[0], values, settings.ranks)
    up = MessageLayout.of(shards, settings.codes.bits)
    names = [extent.name(row, span) for row in range(extent.rows)]
    down = up if settings.down_bits is None else MessageLayout.of(shards, settings.down_bits)
    typed = replace(extent, label=f"{extent.label} of {dtype}", layout=f"{extent.layout} {dtype}")
    identity = identity_of(typed, names, span, f"{shards_digest(shards)} {exact}", whole=whole)
    return PiecePlan(span, extent.sharded, shards, up, down, exact, identity)
