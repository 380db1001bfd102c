"""Tables of the blocks of 64 that ranks encode and decode, and who holds which coordinate.

A program has PROGRAM_BLOCKS blocks, of two tiles a warp. A thread has a whole block: rotation, largest value, sums and
codes need no other thread. Gradients are read and written in the order of memory instead, a block's half by a warp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from byteps_thc._scheme.arrays import I64
from byteps_thc._scheme.block_plan import BLOCK, TILE, USED_BITS, Shard
from byteps_thc._scheme.gpu.frontend import INTERPRETED, PLAIN, L, arange, cast, constexpr, constexpr_function, jit
from byteps_thc._scheme.gpu.layouts import of_columns, of_rows

#: Of a program. The interpreter's time is that of its programs, however large.
WARPS = 4 if INTERPRETED else 1
PROGRAM_BLOCKS = 32 * WARPS
_PROGRAM_TILES = PROGRAM_BLOCKS // TILE
#: Word of a block that a shard's last tile, or the last program, lacks: no coordinates.
_MISSING = -1 << USED_BITS
#: Words of a tile, as in BlockTiles.tiles.
OWNER, NUMBER_IN_SHARD, FIRST = range(3)
_TILE_WORDS = 4

_B, _C, _T, _USED, _WORDS = (constexpr(n) for n in (PROGRAM_BLOCKS, BLOCK, TILE, USED_BITS, _TILE_WORDS))
_FIRST, _NUMBER_IN_SHARD, _OWNER = constexpr(FIRST), constexpr(NUMBER_IN_SHARD), constexpr(OWNER)


@dataclass(frozen=True)
class BlockTiles:
    """Tiles of shards, in the order of the shards, padded to whole programs.

    tiles: int32[tiles, 4]. A tile's OWNER, its NUMBER_IN_SHARD, -1 for padding, the number of its FIRST block in the
    gradient, 0.
    words: int64[tiles * 16]. A block's coordinate << 7 | coordinates used; negative without a block.
    """

    tiles: Tensor
    words: Tensor

    @classmethod
    def of(cls, shards: Sequence[tuple[int, Shard]], columns: int, device: torch.device) -> BlockTiles:
        """Return the tiles of (owner, shard)s. columns: coordinates of a row."""
        tiles, words = [np.zeros((0, _TILE_WORDS), np.int64)], [np.zeros(0, np.int64)]
        for owner, shard in shards:
            blocks = shard.blocks.words
            number = np.arange(-(-len(blocks) // TILE))
            first = shard.blocks.first + TILE * number
            tiles.append(np.stack([np.full_like(number, owner), number, first, np.zeros_like(number)], axis=1))
            words.append(_padded(blocks + (shard.row * columns << USED_BITS), TILE * len(number)))
        table, every = np.concatenate(tiles), np.concatenate(words)
        count = -(-len(table) // _PROGRAM_TILES) * _PROGRAM_TILES
        table = np.concatenate([table, np.tile([0, -1, 0, 0], (count - len(table), 1))])
        return cls(
            torch.from_numpy(table.astype(np.uint32).view(np.int32)).to(device),
            torch.from_numpy(_padded(every, TILE * count)).to(device),
        )

    @property
    def programs(self) -> int:
        return len(self.tiles) // _PROGRAM_TILES


def _padded(words: I64, size: int) -> I64:
    return np.pad(words, (0, size - len(words)), constant_values=_MISSING)


@constexpr_function
def _log(number: int) -> int:
    return number.bit_length() - 1


@constexpr_function
def _powers(count: int, first: int, axis: int) -> list[list[int]]:
    return [[1 << bit, 0] if axis == 0 else [0, 1 << bit] for bit in range(first, first + count)]


@constexpr_function
def own():
    """Layout of [PROGRAM_BLOCKS, 64]: a block a thread."""
    if PLAIN:
        return None
    warps = _powers(_log(WARPS), 5, 0)
    return L.DistributedLinearLayout(_powers(6, 0, 1), _powers(5, 0, 0), warps, [], [PROGRAM_BLOCKS, BLOCK])


@constexpr_function
def streaming():
    """Layout of [PROGRAM_BLOCKS, 64]: neighbours of a block in neighbouring threads."""
    if PLAIN:
        return None
    registers, warps = _powers(1, 5, 1) + _powers(5, 0, 0), _powers(_log(WARPS), 5, 0)
    return L.DistributedLinearLayout(registers, _powers(5, 0, 1), warps, [], [PROGRAM_BLOCKS, BLOCK])


@constexpr_function
def own_rows(columns):
    """Layout of [2 * PROGRAM_BLOCKS, columns] rows of codes: two rows a thread, its block's."""
    if PLAIN:
        return None
    bits, warps = _log(columns), _powers(_log(WARPS), 6, 0)
    registers = _powers(bits, 0, 1) + _powers(1, 0, 0)
    return L.DistributedLinearLayout(registers, _powers(5, 1, 0), warps, [], [2 * PROGRAM_BLOCKS, columns])


@jit
def tile_word(tiles, word: constexpr):
    """A word of the tile of each block, int32[PROGRAM_BLOCKS]."""
    block = L.program_id(0) * _B + arange(_B, of_rows(own()))
    return L.load(tiles + (block // _T) * _WORDS + word)


@jit
def places(tiles, words):
    """(owner, number in the shard, number in the gradient, coordinates used, whether it exists) of own() blocks.

    Numbers in the shard are negative in padding, and beyond its last block in its last tile.
    """
    i = arange(_B, of_rows(own()))
    word = L.load(words + L.program_id(0) * _B + i)
    within = i % _T
    number = (tile_word(tiles, _FIRST) + within).to(L.uint32, bitcast=True)
    block = tile_word(tiles, _NUMBER_IN_SHARD) * _T + within
    return tile_word(tiles, _OWNER), block, number, word.to(L.int32) & 127, word >= 0


@jit
def _coordinates(words):
    """(coordinate, whether it exists) of [PROGRAM_BLOCKS, 64] in streaming()."""
    word = L.load(words + L.program_id(0) * _B + arange(_B, of_rows(streaming())))
    column = L.expand_dims(arange(_C, of_columns(streaming())), 0)
    return L.expand_dims(word >> _USED, 1) + column, column < L.expand_dims(word.to(L.int32) & 127, 1)


@jit
def load_blocks(gradient, words):
    """The blocks of a gradient, float32 in streaming(), 0 for missing coordinates."""
    at, there = _coordinates(words)
    return L.load(gradient + at, there, 0.0).to(L.float32)


@jit
def store_blocks(out, words, x):
    """Write x, float32 in streaming()."""
    at, there = _coordinates(words)
    L.store(out + at, cast(x, out.dtype.element_ty), there)
