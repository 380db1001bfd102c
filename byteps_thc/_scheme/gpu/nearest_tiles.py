"""Tiles of rotation blocks that ranks decode: a tile has blocks of one size and one owner, as many as fit.

Blocks end at tensors and at rows of embeddings (csrc/thc/rotation_blocks.h), so they begin anywhere, as a table in
device memory says. A thread has a row of 32 coordinates, of one block: a block of 16 takes half of it, and the other
half is padding without codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from byteps_thc._native import _core
from byteps_thc._scheme.block_plan import Shard
from byteps_thc._scheme.gpu.frontend import L, arange, constexpr, jit
from byteps_thc._scheme.gpu.layouts import REGISTER_BITS, ROW, of_columns, of_rows, rows
from byteps_thc._scheme.gpu.tiles import ALL_TILES, FULL_TILES, ODD_TILES, tile_of

I64 = npt.NDArray[np.int64]

#: Words of a tile, as in BlockTiles.words.
TILE_WORDS = 8
FIRST, BLOCK, COUNT, LOG, OWNER, ORIGIN, HOLES, FORM = range(TILE_WORDS)
ALIGNED, FULL, HALVED = range(3)
#: Words of a block, as in BlockTiles.blocks.
BLOCK_WORDS = 4
DISTANCE, USED, INDEX, NUMBER = range(BLOCK_WORDS)
#: Coordinates of the smallest block, the unit of places of codes: kMinRowBlock of csrc/thc/rotation_blocks.h.
UNIT = 16
#: Largest distance in a row between blocks of one tile: distances are int32.
_REACH = 1 << 30

_TILE_WORDS, _BLOCK_WORDS = constexpr(TILE_WORDS), constexpr(BLOCK_WORDS)
_FIRST, _BLOCK, _COUNT, _LOG = constexpr(FIRST), constexpr(BLOCK), constexpr(COUNT), constexpr(LOG)
_OWNER, _ORIGIN, _HOLES, _FORM = constexpr(OWNER), constexpr(ORIGIN), constexpr(HOLES), constexpr(FORM)
_FULL, _HALVED, _ROW_LOG = constexpr(FULL), constexpr(HALVED), constexpr(REGISTER_BITS)
_DISTANCE, _USED, _INDEX, _NUMBER = constexpr(DISTANCE), constexpr(USED), constexpr(INDEX), constexpr(NUMBER)


@dataclass(frozen=True)
class BlockTiles:
    """Tiles of the shards of all owners, in the order of owners.

    words: int64[tiles, 8], of each: FIRST coordinate of its first block in the gradient, the number of that BLOCK in
    `blocks`, COUNT of blocks, LOG2 of their size, OWNER of the shard, ORIGIN: index of the shard's first code / 16, its
    bitmap of HOLES, its FORM. HALVED: codes or signs of a block begin at an odd multiple of 16, or are only 16, so that
    a row has fractions of words of codes or signs. Else FULL: one block as large as a tile, without padding and holes.
    Else ALIGNED.

    blocks: int32[blocks, 4], of each: DISTANCE in coordinates to the first block of its tile, coordinates USED, INDEX
    of its first code among the codes of all shards / 16, its NUMBER in its shard.

    holes: int32[bitmaps, tile / 32], a bit for each missing coordinate. The first bitmap has none. tile: coordinates of
    a tile. kind: kinds of its tiles, as in tiles.TileTable.
    """

    words: Tensor
    blocks: Tensor
    holes: Tensor
    tile: int
    kind: int

    @classmethod
    def of(
        cls,
        shards: Sequence[tuple[int, Shard]],
        columns: int,
        device: torch.device,
        *,
        rotation_block: int,
        holes: Sequence[tuple[int, int]] = (),
    ) -> BlockTiles:
        """Return the tiles of (owner, shard)s.

        columns: coordinates of a row. rotation_block: the largest block. holes: (start, stop) in the concatenated rows,
        ascending and disjoint.
        """
        tile = tile_of(rotation_block)
        all_words: list[I64] = [np.zeros((0, TILE_WORDS), np.int64)]
        all_blocks: list[I64] = [np.zeros((0, BLOCK_WORDS), np.int64)]
        last: tuple[_core.RotationBlocks, I64, int] | None = None  # shards of a reduce-scatter have the same blocks
        begin = 0
        for owner, shard in shards:
            if last is None or last[0] is not shard.blocks:
                words, blocks = _cut(shard.blocks, tile)
                last = (shard.blocks, words, begin)
                all_blocks.append(blocks)
                begin += len(blocks)
            _, words, first = last
            all_words.append(words.copy())
            all_words[-1][:, [FIRST, BLOCK, OWNER]] += [shard.row * columns, first, owner]
        words, blocks = np.concatenate(all_words), np.concatenate(all_blocks)
        bitmaps = _punch(words, blocks, holes, tile)
        return cls(
            torch.from_numpy(words).to(device),
            torch.from_numpy(blocks.astype(np.int32)).to(device),
            torch.from_numpy(bitmaps).to(device),
            tile,
            _kind(words),
        )


def _cut(shard: _core.RotationBlocks, tile: int) -> tuple[I64, I64]:
    """Return the tiles and blocks of a shard, as if it were the only one; blocks in the order of tiles."""
    array = shard.array()
    array = np.column_stack([array, np.arange(len(array))])
    array = array[np.argsort(-array[:, 2], kind="stable")]
    coordinate, offset, size, used, number = array.T
    place = np.arange(len(array))
    ends = (np.diff(size, prepend=0) != 0) | (np.diff(coordinate // _REACH, prepend=-1) != 0)
    within = place - np.maximum.accumulate(np.where(ends, place, 0))
    starts = np.flatnonzero(within % (tile // np.maximum(size, ROW)) == 0)
    counts = np.diff(np.append(starts, len(array)))
    words = np.zeros((len(starts), TILE_WORDS), np.int64)
    words[:, FIRST], words[:, BLOCK], words[:, COUNT] = coordinate[starts], starts, counts
    words[:, LOG] = np.log2(size[starts])
    index = offset // UNIT
    origin = index.min() if len(array) else 0
    words[:, ORIGIN] = origin
    words[:, FORM] = np.where((size[starts] == tile) & (used[starts] == tile), FULL, ALIGNED)
    halved = (index % 2 != 0) | ((index - origin) % 2 != 0) | (size < ROW)
    words[np.repeat(np.arange(len(starts)), counts)[halved], FORM] = HALVED
    blocks = np.zeros((len(array), BLOCK_WORDS), np.int64)
    blocks[:, DISTANCE] = coordinate - np.repeat(coordinate[starts], counts)
    blocks[:, USED], blocks[:, INDEX], blocks[:, NUMBER] = used, index, number
    return words, blocks


def _punch(words: I64, blocks: I64, holes: Sequence[tuple[int, int]], tile: int) -> npt.NDArray[np.int32]:
    """Return the bitmaps of holes, and enter them in the tiles."""
    bitmaps = [np.zeros(tile, np.uint8)]
    starts, stops = np.array(holes, np.int64).reshape(-1, 2).T
    final = blocks[words[:, BLOCK] + words[:, COUNT] - 1]
    behind = words[:, FIRST] + final[:, DISTANCE] + final[:, USED]
    reached = np.searchsorted(stops, words[:, FIRST], "right") < np.searchsorted(starts, behind)
    for number in np.flatnonzero(reached):
        word = words[number]
        mine = blocks[word[BLOCK] : word[BLOCK] + word[COUNT]]
        begins = word[FIRST] + mine[:, DISTANCE]
        first, last = np.searchsorted(stops, begins, "right"), np.searchsorted(starts, begins + mine[:, USED])
        if not (first < last).any():
            continue
        word[HOLES] = len(bitmaps)
        if word[FORM] == FULL:
            word[FORM] = ALIGNED
        bitmaps.append(np.zeros(tile, np.uint8))
        for place in np.flatnonzero(first < last):
            used = bitmaps[-1][place << max(word[LOG], REGISTER_BITS) :][: mine[place, USED]]
            for hole in range(first[place], last[place]):
                used[max(starts[hole] - begins[place], 0) : stops[hole] - begins[place]] = 1
    return np.packbits(np.stack(bitmaps), axis=1, bitorder="little").view(np.int32)


def _kind(words: I64) -> int:
    full = int((words[:, FORM] == FULL).sum())
    return FULL_TILES if full == len(words) else ALL_TILES if full else ODD_TILES


@jit
def tile_word(tiles, word: constexpr):
    return L.load(tiles + L.program_id(0) * _TILE_WORDS + word)


@jit
def is_full(tiles):
    return tile_word(tiles, _FORM) == _FULL


@jit
def is_halved(tiles):
    return tile_word(tiles, _FORM) == _HALVED


@jit
def owner_of(tiles):
    """The owner of this program's tile, int64."""
    return tile_word(tiles, _OWNER)


@jit
def log_of(tiles):
    return tile_word(tiles, _LOG).to(L.int32)


@jit
def blocks_of(tiles, blocks, row, log, IS_FULL: constexpr):
    """(addresses of the words of their blocks, whether there is one, rows within them) of rows of 32 coordinates.

    A FULL tile has one address.
    """
    begin = blocks + tile_word(tiles, _BLOCK) * _BLOCK_WORDS
    if IS_FULL:
        return begin, row >= 0, row
    else:
        rows_log = L.maximum(log - _ROW_LOG, 0)
        block = row >> rows_log
        there = block < tile_word(tiles, _COUNT).to(L.int32)
        return begin + block * _BLOCK_WORDS, there, row - (block << rows_log)


@jit
def block_word(entry, there, word: constexpr, IS_FULL: constexpr):
    """A word of blocks; 0 where there is none."""
    return L.load(entry + word) if IS_FULL else L.load(entry + word, there, 0)


@jit
def scale_places(entry, there, IS_FULL: constexpr):
    return block_word(entry, there, _NUMBER, IS_FULL)


@jit
def sign_places(entry, there, within, IS_FULL: constexpr):
    """Indices of the first codes of rows of 32 coordinates, `within` their blocks, / 16; int32."""
    return block_word(entry, there, _INDEX, IS_FULL) + within * 2


@jit
def code_places(tiles, entry, there, within, BITS: constexpr, IS_FULL: constexpr):
    """Places of rows' codes in the shard's codes (sign_places()): half words (of 16 bits), int64."""
    index = block_word(entry, there, _INDEX, IS_FULL).to(L.int64) - tile_word(tiles, _ORIGIN)
    return (index + within * 2) * BITS


@jit
def coordinates_of(tiles, blocks, holes, log, T: constexpr, PART: constexpr, IS_FULL: constexpr):
    """(first coordinate, distance to it, whether it is there) of [T / 32, 32] coordinates, in rows(T, PART, 32)."""
    layout: constexpr = rows(T, PART, 32)
    row = arange(T // 32, of_rows(layout))
    column = L.expand_dims(arange(32, of_columns(layout)), 0)
    entry, there, within = blocks_of(tiles, blocks, row, log, IS_FULL)
    position = L.expand_dims(within * 32, 1) + column
    first = tile_word(tiles, _FIRST)
    if IS_FULL:
        return first, position, position >= 0
    else:
        distance = L.expand_dims(block_word(entry, there, _DISTANCE, IS_FULL), 1) + position
        bitmap = L.expand_dims(L.load(holes + tile_word(tiles, _HOLES) * (T // 32) + row), 1)
        inside = position < L.expand_dims(block_word(entry, there, _USED, IS_FULL), 1)
        return first, distance, inside & (((bitmap >> column) & 1) == 0)


@jit
def without_padding(x, tiles, blocks, log, T: constexpr, PART: constexpr):
    """x, [T / 32, 32] in rows(T, PART, 32), with 0 where a tile that is not FULL has no coordinate."""
    layout: constexpr = rows(T, PART, 32)
    entry, there, within = blocks_of(tiles, blocks, arange(T // 32, of_rows(layout)), log, False)
    position = L.expand_dims(within * 32, 1) + L.expand_dims(arange(32, of_columns(layout)), 0)
    return L.where(position < L.expand_dims(block_word(entry, there, _USED, False), 1), x, 0.0)
