"""Keys and share-outs, which follow from names, sizes and ranks: the same on all ranks, or averages are wrong.

The version of the arithmetic (arithmetic.py) has samples of both, and a gradient's fingerprint has its own.
"""

import hashlib
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from byteps_thc._base.arrays import I64
from byteps_thc._base.limits import NARROWEST_ROW
from byteps_thc._native import _core
from byteps_thc._scheme.block_plan import BLOCK, USED_BITS, RowSpan


@dataclass(frozen=True)
class Shard:
    """A rank's part of a piece, which it averages.

    tensor: the random key. row: of the gradient. blocks: coordinates count from the beginning of the piece's row.
    exact: range of the piece's exact values that this shard has.
    """

    tensor: int
    row: int
    blocks: _core.BlockTable
    exact: slice


def partition_name(key: str, span: slice, row: int | None = None) -> str:
    """Return the name of some columns of a gradient. row: of a gradient with a row for each rank."""
    place = f"{span.start}:{span.stop}"
    return f"{key}[{place}]" if row is None else f"{key}[{row},{place}]"


def parts_within(spans: Iterable[tuple[int, int]], window: slice) -> Iterator[tuple[int, int]]:
    """Yield the parts of (start, stop) in a window, counted from its beginning."""
    for start, stop in spans:
        if start < window.stop and stop > window.start:
            yield max(start, window.start) - window.start, min(stop, window.stop) - window.start


def random_key(name: str) -> int:
    return zlib.crc32(name.encode())


def shards_digest(shards: Iterable[Shard]) -> str:
    digest, last = hashlib.blake2b(digest_size=8), None
    for shard in shards:
        digest.update(repr((shard.tensor, shard.row, shard.blocks.first, shard.exact)).encode())
        if last is None or not shard.blocks.shares_words(last):  # the words of equal rows count once
            digest.update(shard.blocks.words.tobytes())
        last = shard.blocks
    return digest.hexdigest()


def block_words(tensors: Iterable[tuple[int, int]], rows: Iterable[RowSpan] = ()) -> I64:
    """Return the words of a BlockTable, int64[blocks]: blocks end at tensors and at rows of at least 32 elements.

    tensors: (start, stop) of compressed elements, ascending and disjoint. rows: rows with scales within tensors.
    """
    spans = np.array([*tensors], np.int64).reshape(-1, 2)
    cuts = [
        np.arange(row.start + row.width - row.skipped, row.stop, row.width, dtype=np.int64)
        for row in rows
        if row.width >= NARROWEST_ROW and (row.width % BLOCK or row.skipped % BLOCK)
    ]
    # A cut ends a run of blocks and starts the next one: both lists stay equally long.
    starts, stops = (np.sort(np.concatenate([edges, *cuts])) for edges in (spans[:, 0], spans[:, 1]))
    counts = -(-(stops - starts) // BLOCK)
    behind = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # blocks of the same run
    at = np.repeat(starts, counts) + BLOCK * behind
    words: I64 = at << USED_BITS | np.minimum(np.repeat(stops, counts) - at, BLOCK)
    return words


def without_gaps(words: I64, gaps: Iterable[tuple[int, int]], row_start: int) -> I64:
    """Return the words of a row whose tensors may end earlier than the first row's; `words` itself if none does.

    gaps: (start, stop) of the flat gradient's uncompressed elements, ascending, disjoint. row_start: the row's start.
    """
    starts, stops = np.array([*gaps], np.int64).reshape(-1, 2).T
    if not len(starts):
        return words
    at, used = (words >> USED_BITS) + row_start, words & ((1 << USED_BITS) - 1)
    next_gap = np.searchsorted(stops, at, side="right")
    next_start = np.append(starts, np.iinfo(np.int64).max)[next_gap]
    left: I64 = words - used | np.clip(next_start - at, 0, used)
    return words if np.array_equal(left, words) else left


def cut_blocks(tables: Sequence[I64], columns: int, pieces: int) -> Iterator[tuple[slice, list[_core.BlockTable]]]:
    """Cut a gradient, at blocks, into pieces of as many blocks: columns and the tables of each.

    tables: words of each row, which have the same coordinates. Equal neighbouring rows share their words, because a
    rank of FSDP2 has the tables of all rows. columns: elements of a row.
    """
    blocks, at = len(tables[0]), tables[0] >> USED_BITS
    cuts = even_cuts(blocks, min(pieces, max(blocks, 1)))
    edges = [0, *(int(at[cut]) for cut in cuts[1:-1]), columns]
    for (start, stop), (begin, end) in zip(itertools.pairwise(edges), itertools.pairwise(cuts), strict=True):
        own, last = list[_core.BlockTable](), None
        for row, words in enumerate(tables):
            cut = words[begin:end] - (start << USED_BITS)
            shared = own[-1] if last is not None and np.array_equal(cut, last) else _core.BlockTable(cut)
            own.append(shared.numbered(row * blocks + begin))
            last = cut
        yield slice(start, stop), own


def share_out(tensor: int, blocks: _core.BlockTable, exact: int, ranks: int) -> list[Shard]:
    """Return the shards of a piece that all ranks average. exact: number of its exact values."""
    of_blocks, of_exact = (itertools.pairwise(even_cuts(count, ranks)) for count in (len(blocks), exact))
    return [Shard(tensor, 0, blocks.part(*part), slice(*own)) for part, own in zip(of_blocks, of_exact, strict=True)]


def row_shards(tensor: int, tables: Sequence[_core.BlockTable], exact: int) -> list[Shard]:
    """Return the shards of a piece of a reduce-scatter: a row for each rank. exact: exact values of a row."""
    return [Shard(tensor, row, blocks, slice(row * exact, (row + 1) * exact)) for row, blocks in enumerate(tables)]


def even_cuts(count: int, parts: int) -> list[int]:
    """Return where 0 .. count is cut into parts that differ by one at most."""
    return [count * part // parts for part in range(parts + 1)]


#: Shortest partitions with which all servers get one: a round of norms takes longer than 64 packets of codes.
_SHORTEST_SHARE = 1 << 16


def even_spans(size: int, largest: int, multiple: int, servers: int = 1) -> list[slice]:
    """Cut 0 .. size into as few, similar spans as possible: a short last one would cost as much to send.

    largest: longest span. Spans but the last are multiples of `multiple`, or of `largest` if that is less. servers: the
    number of spans is a multiple, as servers take turns, unless spans would be too short.
    """
    multiple = min(multiple, largest)
    multiples = -(-size // multiple)
    count = -(-multiples // (largest // multiple))
    count = max(count, min(-(-count // servers) * servers, size // _SHORTEST_SHARE, multiples))
    cuts = [multiple * (multiples * i // count) for i in range(count)] + [size]
    return [slice(*cut) for cut in itertools.pairwise(cuts)]
