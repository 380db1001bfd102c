"""Tables of the blocks of 64 that ranks encode and decode, and who holds which coordinate.

A program has PROGRAM_BLOCKS blocks of a shard, two tiles a warp. A thread has a whole block: rotation, largest value,
sums and codes need no other thread. Gradients are read and written in the order of memory instead, a block's half by a
warp.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from byteps_thc._base.arrays import I64
from byteps_thc._scheme.block_plan import BLOCK, TILE, USED_BITS
from byteps_thc._scheme.gpu.frontend import INTERPRETED, PLAIN, L, arange, cast, constexpr, constexpr_function, jit
from byteps_thc._scheme.gpu.layouts import of_columns, of_rows
from byteps_thc._scheme.shares import Shard

#: Warps of a program. The interpreter's time depends on the number of programs, not on their size.
WARPS = 4 if INTERPRETED else 1
PROGRAM_BLOCKS = 32 * WARPS
#: Words of blocks that a shard's last tile lacks, and its last program behind that tile.
_MISSING, _BEYOND = -1 << USED_BITS, -2 << USED_BITS
#: Words of a program, as in BlockTiles.programs.
OWNER, TILE_IN_SHARD, FIRST, WORDS_AT = range(4)

_B, _C, _T, _USED, _NOT_BEYOND = (constexpr(n) for n in (PROGRAM_BLOCKS, BLOCK, TILE, USED_BITS, _MISSING))
_OWNER, _TILE_IN_SHARD, _FIRST, _WORDS_AT = (constexpr(n) for n in (OWNER, TILE_IN_SHARD, FIRST, WORDS_AT))


@dataclass(frozen=True)
class BlockTiles:
    """Tiles of shards, by program. A program has tiles of one shard, and programs are in the order of the shards.

    programs: int32[programs, 4]. OWNER, number of the first TILE_IN_SHARD, number of the FIRST block in the gradient,
    PROGRAM_BLOCKS before the program's words.
    words: int64[n * PROGRAM_BLOCKS]. A block's coordinate << 7 | coordinates used; negative without a block. Shards
    with the same words share them.
    """

    programs: Tensor
    words: Tensor

    @classmethod
    def of(cls, shards: Sequence[Shard], device: torch.device) -> "BlockTiles":
        """Return the tiles of the shards of owners 0, 1, and so on."""
        programs, words = [np.zeros((0, 4), np.int64)], [np.zeros(0, np.int64)]
        at, last = 0, None
        for owner, shard in enumerate(shards):
            number = np.arange(-(-len(shard.blocks) // PROGRAM_BLOCKS))
            if last is None or not shard.blocks.shares_words(last):
                words.append(_padded(shard.blocks.words))
                at = sum(map(len, words)) // PROGRAM_BLOCKS - len(number)
            first = shard.blocks.first + PROGRAM_BLOCKS * number
            tile = PROGRAM_BLOCKS // TILE * number
            programs.append(np.stack([np.full_like(number, owner), tile, first, at + number], axis=1))
            last = shard.blocks
        table = np.concatenate(programs).astype(np.uint32).view(np.int32)
        return cls(torch.from_numpy(table).to(device), torch.from_numpy(np.concatenate(words)).to(device))

    def owned(self, owner: int) -> "BlockTiles":
        """Return the tiles of an owner, which is number 0 there; the words stay where they are."""
        own = self.programs[self.programs[:, OWNER] == owner]
        own[:, OWNER] = 0
        return BlockTiles(own, self.words)


def _padded(words: I64) -> I64:
    """Return the words of whole tiles, then of whole programs."""
    tiles = np.pad(words, (0, -len(words) % TILE), constant_values=_MISSING)
    return np.pad(tiles, (0, -len(tiles) % PROGRAM_BLOCKS), constant_values=_BEYOND)


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
def _number(programs, word: constexpr):
    """A word of the program."""
    return L.load(programs + L.program_id(0) * 4 + word)


@jit
def owner_of(programs):
    """The owner of the program's blocks, int64."""
    return _number(programs, _OWNER).to(L.int64)


@jit
def _block_words(programs, words, layout: constexpr):
    return L.load(words + _number(programs, _WORDS_AT).to(L.int64) * _B + arange(_B, layout))


@jit
def places(programs, words):
    """(number in the shard, number in the gradient, coordinates used, whether it exists) of own() blocks.

    Numbers in the shard are negative behind its last tile.
    """
    i, word = arange(_B, of_rows(own())), _block_words(programs, words, of_rows(own()))
    number = (_number(programs, _FIRST) + i).to(L.uint32, bitcast=True)
    block = L.where(word >= _NOT_BEYOND, _number(programs, _TILE_IN_SHARD) * _T + i, -1)
    return block, number, word.to(L.int32) & 127, word >= 0


@jit
def _coordinates(programs, words):
    """(coordinate, whether it exists) of [PROGRAM_BLOCKS, 64] in streaming()."""
    word = _block_words(programs, words, of_rows(streaming()))
    column = L.expand_dims(arange(_C, of_columns(streaming())), 0)
    return L.expand_dims(word >> _USED, 1) + column, column < L.expand_dims(word.to(L.int32) & 127, 1)


@jit
def load_blocks(gradient, programs, words):
    """The blocks of a row of a gradient, float32 in streaming(), 0 for missing coordinates."""
    at, there = _coordinates(programs, words)
    return L.load(gradient + at, there, 0.0).to(L.float32)


@jit
def store_blocks(out, programs, words, x):
    """Write x, float32 in streaming()."""
    at, there = _coordinates(programs, words)
    L.store(out + at, cast(x, out.dtype.element_ty), there)
