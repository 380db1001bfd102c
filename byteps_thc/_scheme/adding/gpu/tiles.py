"""The table of a kernel's tiles in a partition, in device memory."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from byteps_thc._base.wire.layout import MIN_ROTATION_BLOCK
from byteps_thc._native import _core
from byteps_thc._scheme.gpu.frontend import L, constexpr, jit
from byteps_thc._scheme.gpu.layouts import MIN_TILE

#: Words of a tile in a TileTable.
WORDS = 5
FIRST, BLOCK, REST, USED, ODD = range(WORDS)
#: Kinds of tiles. Odd tiles are not full, or have holes.
FULL_TILES, ODD_TILES, ALL_TILES = range(3)

_FIRST, _BLOCK, _REST, _USED, _ODD = (constexpr(word) for word in (FIRST, BLOCK, REST, USED, ODD))
_WORDS, _UNIT = constexpr(WORDS), constexpr(MIN_ROTATION_BLOCK)


def tile_of(rotation_block: int) -> int:
    return max(MIN_TILE, rotation_block)


@dataclass(frozen=True)
class TileTable:
    """Tiles of a partition, whose rotation blocks restart at `ends`.

    words: int32[tiles, 5], of each: FIRST coordinate / 64, the number of its first BLOCK, the REST of the coordinates
    to the end of its blocks (padded ones included, at most a tile), how many coordinates are USED, whether it is ODD.
    kind: of the table's tiles. rotation_block: the largest block.
    """

    words: Tensor
    kind: int
    rotation_block: int

    @classmethod
    def of(cls, coordinates: int, ends: Sequence[int], rotation_block: int, device: torch.device) -> "TileTable":
        """Return the tiles of a partition. ends: of rotation blocks, multiples of 64."""
        words = _tiles(coordinates, ends, rotation_block)
        return cls(torch.from_numpy(words.astype(np.int32)).to(device), _kind(words), rotation_block)


def _tiles(coordinates: int, ends: Sequence[int], rotation_block: int) -> npt.NDArray[np.int64]:
    tile, blocks, found = tile_of(rotation_block), 0, []
    for begin, stop in itertools.pairwise([0, *ends, coordinates]):
        rest = _core.padded_size(stop - begin, rotation_block)
        for at in range(0, rest, tile):
            used = min(stop - begin - at, tile)
            first, block = (begin + at) // MIN_ROTATION_BLOCK, blocks + at // rotation_block
            found.append([first, block, min(rest - at, tile), used, int(used < tile)])
        blocks += len(_core.block_sizes(rest, rotation_block))
    return np.array(found, np.int64).reshape(-1, WORDS)


def _kind(words: npt.NDArray[np.int64]) -> int:
    odd = int(words[:, ODD].sum())
    return FULL_TILES if not odd else ODD_TILES if odd == len(words) else ALL_TILES


@jit
def _word(tiles, word: constexpr):
    return L.load(tiles + L.program_id(0) * _WORDS + word)


@jit
def first_of(tiles):
    return _word(tiles, _FIRST).to(L.int64) * _UNIT


@jit
def rest_of(tiles):
    """Coordinates from first_of() to the end of its blocks, padded ones included, T at most; int32."""
    return _word(tiles, _REST)


@jit
def first_block_of(tiles):
    """The number of its first block. Call it late, so that no register holds the number before."""
    return _word(tiles, _BLOCK).to(L.int64)


@jit
def is_odd(tiles):
    return _word(tiles, _ODD) != 0


@jit
def there_of(i, tiles, T: constexpr, ODD: constexpr):
    """Whether the tile has coordinates i, int32; a tile that is not ODD has all."""
    return i < _word(tiles, _USED) if ODD else i < T
