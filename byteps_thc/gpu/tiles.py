"""Where the tiles of a kernel lie: one behind the other in a partition, or, where blocks end at tensors, in a list."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from byteps_thc import _core
from byteps_thc.gpu.frontend import L, constexpr, jit
from byteps_thc.gpu.layouts import MIN_TILE
from byteps_thc.wire.layout import MIN_ROTATION_BLOCK

#: Words of a tile in a list.
_WORDS = constexpr(3)
_UNIT = constexpr(MIN_ROTATION_BLOCK)


@dataclass(frozen=True)
class TileList:
    """Tiles of partitions whose rotation blocks begin anew in places; int32[tiles, 3], a row for each.

    full: those of nothing but full blocks. tails: what is left behind them in front of an end. A row: first coordinate
    / 64, first block, coordinates to the end.
    """

    full: Tensor
    tails: Tensor
    #: what full tiles and tails cover: where each begins, and where it ends
    places: tuple[tuple[list[int], list[int]], ...]

    @classmethod
    def of(cls, edges: Sequence[int], rotation_block: int, device: torch.device) -> TileList:
        """Return that of coordinates edges[0] = 0 .. edges[-1], whose blocks begin anew at every edge; 64 divides all
        edges but the last.
        """
        tile = max(MIN_TILE, rotation_block)
        found: tuple[list[tuple[int, int, int]], ...] = [], []  # full tiles, tails
        places: tuple[tuple[list[int], list[int]], ...] = ([], []), ([], [])
        blocks = 0
        for start, stop in itertools.pairwise(edges):
            padded = _core.padded_size(stop - start, rotation_block)
            for first in range(0, padded, tile):
                row = (start + first) // MIN_ROTATION_BLOCK, blocks + first // rotation_block, padded - first
                kind = int(first + tile > padded)
                found[kind].append(row)
                places[kind][0].append(start + first)
                places[kind][1].append(start + min(first + tile, padded))
            blocks += len(_core.block_sizes(padded, rotation_block))
        full, tails = (torch.tensor(rows, dtype=torch.int32, device=device).view(-1, 3) for rows in found)
        return cls(full, tails, places)

    def of_part(self, begin: int, end: int) -> Iterator[tuple[Tensor, bool]]:
        """Give the full tiles with some of the coordinates begin .. end - 1, and the tails; and whether it is these."""
        for tail, (rows, (starts, stops)) in enumerate(zip((self.full, self.tails), self.places, strict=True)):
            yield rows[bisect_right(stops, begin) : bisect_left(starts, end)], bool(tail)


@jit
def place_of(tiles, first_tile, padded, T: constexpr, LISTED: constexpr):
    """(first coordinate, coordinates from there to the end) of a program's tile.

    LISTED: as a TileList says; else tile `first_tile` + program of a partition without ends.
    """
    if LISTED:
        at = tiles + L.program_id(0) * _WORDS
        first = L.load(at).to(L.int64) * _UNIT
        rest = L.load(at + 2)
    else:
        first = (L.program_id(0).to(L.int64) + first_tile) * T
        rest = (padded - first).to(L.int32)
    return first, rest


@jit
def first_block_of(tiles, first_tile, LOG: constexpr, T: constexpr, LISTED: constexpr):
    """The number of its first block: to be asked for where it is needed, so that no register has it before."""
    if LISTED:
        block = L.load(tiles + L.program_id(0) * _WORDS + 1).to(L.int64)
    else:
        block = (L.program_id(0).to(L.int64) + first_tile) * (T >> LOG)
    return block


@jit
def used_of(coordinates, first, rest, TAIL: constexpr, LISTED: constexpr):
    """Coordinates of a tile that are there, and in front of its end."""
    used = coordinates - first
    if LISTED and TAIL:
        used = L.minimum(used, rest)
    return used
