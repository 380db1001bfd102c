"""Where the tiles of a kernel lie: one behind the other in a partition, or as a table in device memory says.

A table has the tiles of all partitions of all rows of a gradient, so that a kernel is launched once for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from byteps_thc import _core
from byteps_thc.gpu.frontend import L, constexpr, jit
from byteps_thc.gpu.layouts import MIN_TILE
from byteps_thc.keys import KEY_WORDS
from byteps_thc.wire.layout import MIN_ROTATION_BLOCK

#: What is in a table for each tile, see TileTable.
WORDS = 10
ROW, FIRST, BLOCK, REST, PART, WITHIN, CODES, USED, HOLES, ODD = range(WORDS)
#: What of tiles there are. Odd ones: that end before they are full, or have holes.
FULL_TILES, ODD_TILES, ALL_TILES = range(3)

_ROW, _FIRST, _BLOCK, _REST, _PART = (
    constexpr(ROW),
    constexpr(FIRST),
    constexpr(BLOCK),
    constexpr(REST),
    constexpr(PART),
)
_WITHIN, _CODES, _USED, _HOLES, _ODD = (constexpr(word) for word in (WITHIN, CODES, USED, HOLES, ODD))
_WORDS, _UNIT, _KEY_WORDS = constexpr(WORDS), constexpr(MIN_ROTATION_BLOCK), constexpr(KEY_WORDS)


def tile_of(rotation_block: int) -> int:
    """Return the coordinates of a tile."""
    return max(MIN_TILE, rotation_block)


@dataclass(frozen=True)
class TileTable:
    """Tiles of partitions whose rotation blocks begin anew in places, in rows of a gradient.

    words: int32[tiles, 10], of each: ROW of the gradient, FIRST coordinate in it / 64, first rotation BLOCK of all,
    the REST of the coordinates, padded ones included, to where its blocks end (at most a tile), the PARTition of all,
    first coordinate WITHIN it / 64 and among all CODES / 64, how many coordinates are USED, its bitmap of HOLES,
    whether it is ODD. holes: int32[bitmaps, tile / 32], a bit for each coordinate that is no part of the gradient: it
    counts as 0, and is not written. The first bitmap has none. stride: from row to row; 0: there is one. codes: of
    all partitions, padded. kind: which tiles there are.
    """

    words: Tensor
    holes: Tensor
    stride: int
    codes: int
    kind: int

    @classmethod
    def of(
        cls,
        sizes: Sequence[int],
        ends: Sequence[Sequence[int]],
        padded: Sequence[int],
        rotation_block: int,
        device: torch.device,
        *,
        rows: int = 1,
        holes: Sequence[tuple[int, int]] = (),
    ) -> TileTable:
        """Return that of rows of partitions of these sizes, all but the last multiples of 64.

        ends: of rotation blocks, in each partition. padded: coordinates that each has codes for. holes: (start, stop)
        in all rows, one behind the other, ascending and disjoint.
        """
        tile, stride = tile_of(rotation_block), sum(sizes)
        row = _row_of_tiles(sizes, ends, padded, rotation_block)
        each = np.zeros(WORDS, np.int64)
        each[[ROW, BLOCK, PART, CODES]] = 1, _blocks(sizes, ends, rotation_block), len(sizes), sum(padded) // 64
        words = (row + each * np.arange(rows)[:, None, None]).reshape(-1, WORDS)
        bitmaps = _punch(words, holes, stride, tile)
        words[:, ODD] = (words[:, USED] < tile) | (words[:, HOLES] > 0)
        return cls(
            torch.from_numpy(words.astype(np.int32)).to(device),
            torch.from_numpy(bitmaps).to(device),
            stride if rows > 1 else 0,
            rows * sum(padded),
            _kind(words),
        )

    def with_codes(self, begin: int, end: int) -> TileTable | None:
        """Return the tiles that have some of the codes begin .. end - 1; None: there are none."""
        words = self.words.cpu()
        first = words[:, CODES].long() * MIN_ROTATION_BLOCK
        mine = words[(first < end) & (first + words[:, REST] > begin)]
        if not len(mine):
            return None
        return TileTable(mine.to(self.words.device), self.holes, self.stride, self.codes, _kind(mine.numpy()))

    def of_row(self, row: int, parts: int) -> TileTable:
        """Return the tiles of a row, of so many partitions, of an average, whose sums are the row's alone."""
        words = self.words.cpu()
        mine = words[words[:, ROW] == row]
        mine[:, CODES] -= mine[0, CODES].clone()
        mine[:, ROW] = 0
        assert int(mine[0, PART]) == row * parts
        codes = self.codes // (int(words[-1, ROW]) + 1)
        return TileTable(mine.to(self.words.device), self.holes, 0, codes, _kind(mine.numpy()))


def _row_of_tiles(
    sizes: Sequence[int], ends: Sequence[Sequence[int]], padded: Sequence[int], rotation_block: int
) -> npt.NDArray[np.int64]:
    tile, found = tile_of(rotation_block), []
    blocks = start = codes = 0
    for part, (size, own, all_codes) in enumerate(zip(sizes, ends, padded, strict=True)):
        for begin, stop in itertools.pairwise([0, *own, size]):
            rest = _core.padded_size(stop - begin, rotation_block)
            for at in range(0, rest, tile):
                first, used = begin + at, min(stop - begin - at, tile)
                found.append(
                    [
                        0, (start + first) // 64, blocks + at // rotation_block, min(rest - at, tile), part,
                        first // 64, (codes + first) // 64, used, 0, 0,
                    ]
                )  # fmt: skip
            blocks += len(_core.block_sizes(rest, rotation_block))
        start, codes = start + size, codes + all_codes
    return np.array(found, np.int64).reshape(-1, WORDS)


def _blocks(sizes: Sequence[int], ends: Sequence[Sequence[int]], rotation_block: int) -> int:
    lengths = (
        stop - begin
        for size, own in zip(sizes, ends, strict=True)
        for begin, stop in itertools.pairwise([0, *own, size])
    )
    return sum(len(_core.block_sizes(length, rotation_block)) for length in lengths)


def _punch(
    words: npt.NDArray[np.int64], holes: Sequence[tuple[int, int]], stride: int, tile: int
) -> npt.NDArray[np.int32]:
    """Return the bitmaps of holes, and note them in the table."""
    firsts = words[:, ROW] * stride + words[:, FIRST] * 64
    bitmaps = [np.zeros(tile, np.uint8)]
    for start, stop in holes:
        number = max(int(np.searchsorted(firsts, start, "right")) - 1, 0)
        while number < len(words) and firsts[number] < stop:
            first, used = firsts[number], words[number, USED]
            if start < first + used:
                if not words[number, HOLES]:
                    words[number, HOLES] = len(bitmaps)
                    bitmaps.append(np.zeros(tile, np.uint8))
                bitmaps[words[number, HOLES]][max(start - first, 0) : min(stop - first, used)] = 1
            number += 1
    return np.packbits(np.stack(bitmaps), axis=1, bitorder="little").view(np.int32)


def _kind(words: npt.NDArray[np.int64] | npt.NDArray[np.int32]) -> int:
    odd = int(words[:, ODD].sum())
    return FULL_TILES if not odd else ODD_TILES if odd == len(words) else ALL_TILES


@jit
def _word(tiles, word: constexpr):
    return L.load(tiles + L.program_id(0) * _WORDS + word)


@jit
def first_of(tiles, stride, T: constexpr, LISTED: constexpr):
    """First coordinate of a program's tile in memory of the gradient's shape.

    LISTED: as a TileTable says; else tile `program` of a partition without ends.
    """
    if LISTED:
        first = _word(tiles, _ROW).to(L.int64) * stride + _word(tiles, _FIRST).to(L.int64) * _UNIT
    else:
        first = L.program_id(0).to(L.int64) * T
    return first


@jit
def within_of(tiles, T: constexpr, LISTED: constexpr):
    """First coordinate within the partition: what random bits count."""
    if LISTED:
        first = _word(tiles, _WITHIN).to(L.int64) * _UNIT
    else:
        first = L.program_id(0).to(L.int64) * T
    return first


@jit
def codes_of(tiles, T: constexpr, LISTED: constexpr):
    """The number of its first code among all."""
    if LISTED:
        first = _word(tiles, _CODES).to(L.int64) * _UNIT
    else:
        first = L.program_id(0).to(L.int64) * T
    return first


@jit
def rest_of(tiles, padded, T: constexpr, LISTED: constexpr):
    """Coordinates from there to the end, padded ones included, T at most; int32."""
    if LISTED:
        rest = _word(tiles, _REST)
    else:
        rest = L.minimum(padded - L.program_id(0).to(L.int64) * T, T).to(L.int32)
    return rest


@jit
def part_of(tiles, LISTED: constexpr):
    """The partition's number."""
    if LISTED:
        part = _word(tiles, _PART).to(L.int64)
    else:
        part = 0
    return part


@jit
def key_of(keys, tiles, LISTED: constexpr):
    """The partition's key."""
    return keys + part_of(tiles, LISTED) * _KEY_WORDS


@jit
def first_block_of(tiles, LOG: constexpr, T: constexpr, LISTED: constexpr):
    """The number of its first block: to be asked for where it is needed, so that no register has it before."""
    if LISTED:
        block = _word(tiles, _BLOCK).to(L.int64)
    else:
        block = L.program_id(0).to(L.int64) * (T >> LOG)
    return block


@jit
def is_odd(tiles, coordinates, T: constexpr, LISTED: constexpr):
    """Whether something of the tile is not there."""
    if LISTED:
        odd = _word(tiles, _ODD) != 0
    else:
        odd = coordinates - L.program_id(0).to(L.int64) * T < T
    return odd


@jit
def there_of(i, tiles, holes, coordinates, T: constexpr, ODD: constexpr, LISTED: constexpr):
    """Whether coordinates i of the tile, int32, are there; of a tile that is not ODD all are."""
    if not ODD:
        there = i < T
    elif LISTED:
        bitmap = holes + _word(tiles, _HOLES).to(L.int64) * (T // 32)
        there = (i < _word(tiles, _USED)) & (((L.load(bitmap + (i >> 5)) >> (i & 31)) & 1) == 0)
    else:
        there = i < L.minimum(coordinates - L.program_id(0).to(L.int64) * T, T).to(L.int32)
    return there
