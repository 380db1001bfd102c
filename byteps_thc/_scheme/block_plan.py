"""Plans rotation blocks and scales, to keep the error of one tensor, or one row of an embedding, out of others."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from byteps_thc._base.arrays import U64

#: Smallest tensors with separate rotation blocks: a norm for each block of 64 would be an eighth of its codes.
OWN_BLOCKS_COORDINATES = 1024
#: Blocks end at its multiples: coordinates whose signs are drawn together.
END_MULTIPLE = 128
#: Among ranks: coordinates of a block, blocks of a tile, and bits of a block's word with its number of coordinates.
BLOCK, TILE, USED_BITS = 64, 16, 7


@dataclass(frozen=True)
class RowSpan:
    """Coordinates start .. stop - 1 of a gradient, in rows of `width` coordinates with a scale each.

    skipped: coordinates of the first row before `start`, fewer than width.
    """

    start: int
    stop: int
    width: int
    skipped: int = 0

    def within(self, span: slice) -> "RowSpan":
        """Return the part in an overlapping span, counted from the span's beginning."""
        start, stop = max(self.start, span.start), min(self.stop, span.stop)
        skipped = (self.skipped + start - self.start) % self.width
        return RowSpan(start - span.start, stop - span.start, self.width, skipped)


@dataclass(frozen=True)
class BlockPlan:
    """The workers' agreement about the blocks of a gradient.

    ends: of rotation blocks, besides the ends of partitions: ascending multiples of 128. rows: ascending and disjoint
    spans of rows with scales (row_scales.py).
    """

    ends: tuple[int, ...] = ()
    rows: tuple[RowSpan, ...] = ()

    def within(self, span: slice) -> "BlockPlan":
        """Return the plan of a partition, counted from its beginning."""
        overlapping = (row for row in self.rows if row.start < span.stop and row.stop > span.start)
        ends = (end - span.start for end in self.ends if span.start < end < span.stop)
        return BlockPlan(tuple(ends), tuple(row.within(span) for row in overlapping))

    def __str__(self) -> str:
        """Return a text that identifies the plan; empty for blocks of whole partitions without rows."""
        rows = " ".join(f"{row.start}:{row.stop}/{row.width}-{row.skipped}" for row in self.rows)
        return " ".join(filter(None, (str(self.ends) if self.ends else "", rows)))


#: Rotation blocks end where partitions do, and no row has a scale.
WHOLE = BlockPlan()


def block_ends(tensors: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return ends of rotation blocks, besides the ends of partitions, so that they do not mix tensors of a gradient.

    tensors: (start, stop) of compressed coordinates, ascending and disjoint; between them are zeros. Ends are multiples
    of 128; a group of 128 with coordinates of several tensors is a block. Adjacent tensors of less than 1024
    coordinates share blocks, up to 1024 coordinates.
    """
    neighbours = itertools.pairwise(_with_own_blocks(tensors))
    return tuple(sorted({end for before, behind in neighbours for end in _ends_between(before[1], behind[0])}))


def ends_array(ends: Sequence[int]) -> U64 | None:
    return np.array(ends, np.uint64) if ends else None


def _with_own_blocks(tensors: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    group: tuple[int, int] | None = None
    for start, stop in tensors:
        if group is not None and stop - start >= OWN_BLOCKS_COORDINATES:
            yield group
            group = None
        group = (start if group is None else group[0], stop)
        if group[1] - group[0] >= OWN_BLOCKS_COORDINATES:
            yield group
            group = None
    if group is not None:
        yield group


def _ends_between(stop: int, start: int) -> Iterator[int]:
    last = start // END_MULTIPLE * END_MULTIPLE
    if last >= stop:
        yield last
    else:
        yield from (stop // END_MULTIPLE * END_MULTIPLE, -(-start // END_MULTIPLE) * END_MULTIPLE)
