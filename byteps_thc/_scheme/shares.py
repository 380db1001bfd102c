"""Keys and share-outs, which follow from names, sizes and ranks: the same on all ranks, or averages are wrong.

The version of the arithmetic (arithmetic.py) has samples of both, and a gradient's fingerprint has its own.
"""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from byteps_thc._native import _core
from byteps_thc._scheme.arrays import U64
from byteps_thc._scheme.block_plan import RowSpan, Shard


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
    digest, blocks = hashlib.blake2b(digest_size=8), None
    for shard in shards:
        digest.update(repr((shard.tensor, shard.row, shard.columns, shard.exact)).encode())
        if shard.blocks is not blocks:  # rows have the same
            blocks = shard.blocks
            digest.update(blocks.array().tobytes())
    return digest.hexdigest()


#: Fewest rotation blocks of a shard, unless blocks would be below _SMALLEST_BLOCK. Shards end at blocks, and the
#: largest shard determines time and bytes of all.
_BLOCKS_OF_A_SHARD = 16
_SMALLEST_BLOCK = 512


def block_ends(columns: int, tensors: Iterable[tuple[int, int]], rows: Iterable[RowSpan]) -> U64 | None:
    """Return ends of rotation blocks between the first and the last column; None without any.

    tensors: (start, stop) of each compressed tensor. rows: spans of rows with scales.
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

    ranks: number that share the blocks. largest: the largest block. tensors, rows: as in block_ends.
    """
    wanted = max(columns // (ranks * _BLOCKS_OF_A_SHARD), _SMALLEST_BLOCK) if ranks > 1 else largest
    block = min(1 << (wanted.bit_length() - 1), largest)
    return _core.RotationBlocks(columns, block, block_ends(columns, tensors, rows))


def cut_blocks(blocks: _core.RotationBlocks, pieces: int) -> list[tuple[slice, _core.RotationBlocks]]:
    """Cut a gradient, at blocks, into pieces of similar sizes: columns and blocks of each, without empty ones.

    Averages do not depend on the cut: a piece has the signs of the gradient.
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

    tensors: random keys of the rows. blocks: of each row of the piece. exact: exact values of each row.
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
