"""A piece of a gradient on a device, among ranks that decode each other's codes: to messages and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byteps_thc._scheme.arrays import require_tensor
from byteps_thc._scheme.block_plan import MessageLayout, Shard
from byteps_thc._scheme.errors import InputError
from byteps_thc._scheme.gpu.kernels import check_rotation_block, register_limit
from byteps_thc._scheme.gpu.launch import Launcher
from byteps_thc._scheme.gpu.layouts import WARP_COORDINATES
from byteps_thc._scheme.gpu.nearest_blocks import DOWN, UP
from byteps_thc._scheme.gpu.nearest_decode import decode_nearest_kernel, recode_nearest_kernel
from byteps_thc._scheme.gpu.nearest_encode import HEAD, encode_nearest_kernel
from byteps_thc._scheme.gpu.nearest_tiles import BlockTiles
from byteps_thc._scheme.keys import signed_word
from byteps_thc._scheme.rounding import DOWN_SIGN_DOMAIN
from byteps_thc._scheme.tables.device import PointTable, points_of
from byteps_thc._scheme.tables.points import Points
from byteps_thc._scheme.wire.layout import MIN_ROTATION_BLOCK

_GRADIENTS = (torch.float32, torch.float16, torch.bfloat16)
_OPTIONS: dict[str, Any] = {"enable_fp_fusion": False, **register_limit()}
_encode = Launcher(encode_nearest_kernel, **_OPTIONS)
_recode = Launcher(recode_nearest_kernel, **_OPTIONS)
_decode = Launcher(decode_nearest_kernel, **_OPTIONS)


class NearestBatch:
    """A piece: one row that all ranks average (n shards), or n rows, of which each rank averages its own.

    Nothing here waits for the device: all calls are put on the current stream.

    shards: of all ranks, in their order. rank: this one. columns: coordinates of a row. seed: of all signs. up: the
    points of each rank. down: the points of averages; None if owners keep them. layouts: of messages to owners, and
    from owners (the first if averages stay). state: int32[4], differ: bool[], of the engine's DeviceAgreement. exact:
    (start, stop) of columns that travel exactly, in all rows. holes: uncompressed coordinates, padding included,
    (start, stop) in the concatenated rows. Both are ascending and disjoint. Raises ConfigurationError for rotation
    blocks above 16384.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        rank: int,
        columns: int,
        *,
        seed: int,
        up: Sequence[Points],
        down: Points | None,
        layouts: tuple[MessageLayout, MessageLayout],
        state: Tensor,
        differ: Tensor,
        exact: Sequence[tuple[int, int]] = (),
        holes: Sequence[tuple[int, int]] = (),
    ) -> None:
        device = state.device
        rows = max(shard.row for shard in shards) + 1
        self._up, self._down, self._ranks = layouts[0], layouts[1], len(shards)
        self._size, self._columns = rows * columns, columns
        self.agreement = state, differ
        self._state, self._differ = state, differ.view(torch.uint8)
        self._begun = torch.zeros(3, dtype=torch.int32, device=device)
        self._keys = _keys(seed, shards, device)
        self._own_points = PointTable.of(up[rank], device)
        self._all_points = points_of(up, device)
        self._down_points = None if down is None else PointTable.of(down, device)
        largest = max((int(shard.blocks.array()[:, 2].max(initial=0)) for shard in shards), default=0)
        largest = max(largest, MIN_ROTATION_BLOCK)
        check_rotation_block(largest)

        def tiles(owners: Sequence[tuple[int, Shard]], holes: Sequence[tuple[int, int]]) -> BlockTiles:
            return BlockTiles.of(owners, columns, device, rotation_block=largest, holes=holes)

        everyone = [*enumerate(shards)]
        self._sent = tiles(everyone, holes)
        mine = (rank, replace(shards[rank], row=0))
        if down is None:
            self._decoded = tiles([mine], exact)
        else:
            self._own, self._decoded = tiles([mine], ()), tiles(everyone, exact)
        self._place_exact(shards, rank, rows, exact, down is None)

    def _place_exact(
        self, shards: Sequence[Shard], rank: int, rows: int, exact: Sequence[tuple[int, int]], stays: bool
    ) -> None:
        """Compute the places of exact values, in words of messages and in the gradient."""
        device = self._state.device
        within = [column for start, stop in exact for column in range(start, stop)]
        columns = torch.tensor(within, dtype=torch.int64, device="cpu")
        index = (torch.arange(rows, device="cpu").unsqueeze(1) * self._columns + columns).view(-1)
        counts = [shard.exact.stop - shard.exact.start for shard in shards]

        def places(layout: MessageLayout) -> Tensor:
            each = [
                torch.arange(count, device="cpu") + (owner * layout.size_bytes + layout.exact_at) // 4
                for owner, count in enumerate(counts)
            ]
            return torch.cat(each)

        order = torch.cat([torch.arange(shard.exact.start, shard.exact.stop, device="cpu") for shard in shards])
        self._exact_index = index[order].to(device)
        self._exact_sent = places(self._up).to(device)
        self._exact_own = (torch.arange(counts[rank], device="cpu") + self._up.exact_at // 4).to(device)
        if stays:
            self._exact_decoded, self._exact_out = self._exact_own, columns.to(device)
        else:
            self._exact_decoded, self._exact_out = places(self._down).to(device), self._exact_index

    def encode(self, gradient: Tensor, sent: Tensor, header: tuple[int, int, int, int], round: int) -> None:
        """Begin a round, and write the messages to all owners.

        gradient: contiguous, float32, float16 or bfloat16[rows * columns]. sent: uint8[n, size_bytes], 16-byte aligned.
        header: of DeviceAgreement: number of the gradient, its round in 31 bits, two words of its fingerprint. round:
        32 bits, the same on all ranks, never twice for a name.
        """
        require_tensor("gradient", gradient, _GRADIENTS, self._size)
        self._require("sent", sent, self._ranks * self._up.size_bytes)
        number, round31, largest, complement = header
        table, tiles = self._own_points, self._sent
        _launch(
            _encode, tiles, self._exact_sent.numel(),
            (gradient, _words(sent), self._up.size_bytes // 4, self._up.codes_at // 4, self._ranks, self._keys,
             self._begun, number, round31, signed_word(round), largest, complement, table.entries, table.points,
             table.slope, self._exact_sent, self._exact_index),
            (tiles.words, tiles.blocks, tiles.holes),
            (table.bits,),
        )  # fmt: skip

    def recode(self, received: Tensor, own: Tensor) -> None:
        """Write the message of the own shard's averages to all ranks.

        received: uint8[n, size_bytes], of all ranks. own: uint8[size_bytes of averages], 16-byte aligned.
        """
        table = self._down_points
        if table is None:
            raise InputError("averages of rows stay with their owners: use average()")
        self._require("received", received, self._ranks * self._up.size_bytes)
        self._require("own", own, self._down.size_bytes)
        tiles, up, down = self._own, self._up, self._down
        _launch(
            _recode, tiles, self._exact_own.numel(),
            (_words(received), up.size_bytes // 4, up.codes_at // 4, self._ranks, _words(own), down.codes_at // 4,
             down.exact_at // 4, self._keys, self._begun, self._all_points, table.entries, table.points, table.slope,
             self._exact_own),
            (tiles.words, tiles.blocks),
            (self._own_points.bits, table.bits, self._ranks > 1),
        )  # fmt: skip

    def decode(self, gathered: Tensor, out: Tensor) -> None:
        """Write the averages, NaN if ranks differ, in this round or before.

        gathered: uint8[n, size_bytes], of all owners. out: contiguous, float32, float16 or bfloat16[columns].
        """
        table = self._down_points
        if table is None:
            raise InputError("averages of rows stay with their owners: use average()")
        words = self._down.size_bytes // 4
        self._average(gathered, out, self._down, words, 1, table.points, (table.bits, False, DOWN))

    def average(self, received: Tensor, out: Tensor) -> None:
        """Write the averages of the own row, NaN if ranks differ, in this round or before.

        received: uint8[n, size_bytes], of all ranks. out: as in decode().
        """
        if self._down_points is not None:
            raise InputError("averages travel to all ranks: use recode() and decode()")
        bits = self._own_points.bits
        self._average(received, out, self._up, 0, self._ranks, self._all_points, (bits, self._ranks > 1, UP))

    def _average(
        self, messages: Tensor, out: Tensor, layout: MessageLayout, owner_words: int, ranks: int, points: Tensor,
        constants: tuple[Any, ...],
    ) -> None:  # fmt: skip
        require_tensor("out", out, _GRADIENTS, self._columns)
        self._require("messages", messages, self._ranks * layout.size_bytes)
        tiles = self._decoded
        _launch(
            _decode, tiles, self._exact_decoded.numel(),
            (_words(messages), layout.size_bytes // 4, owner_words, layout.codes_at // 4, ranks, self._ranks, out,
             self._keys, self._begun, self._state, self._differ, points, self._exact_decoded, self._exact_out),
            (tiles.words, tiles.blocks, tiles.holes),
            constants,
        )  # fmt: skip

    def _require(self, name: str, messages: Tensor, size: int) -> None:
        require_tensor(name, messages, (torch.uint8,), size)
        if messages.data_ptr() % 4:
            raise InputError(f"{name} must begin at a multiple of 16 bytes")


def _keys(seed: int, shards: Sequence[Shard], device: torch.device) -> Tensor:
    words = [[seed & 0xFFFFFFFF, seed >> 32, shard.tensor, 0, DOWN_SIGN_DOMAIN] for shard in shards]
    return torch.from_numpy(np.array(words, np.uint32).view(np.int32)).to(device)


def _words(messages: Tensor) -> Tensor:
    return messages.view(-1).view(torch.int32)


def _launch(
    launch: Launcher, tiles: BlockTiles, exact: int, arguments: tuple[Any, ...], place: tuple[Tensor, ...],
    constants: tuple[Any, ...],
) -> None:  # fmt: skip
    """Launch a kernel for all tiles and `exact` values; at least one program has no tile."""
    programs = tiles.words.shape[0]
    heads = max(-(-exact // HEAD), 1)
    launch(
        programs + heads,
        (*arguments, exact, programs, *place),
        (tiles.tile, *constants, tiles.kind),
        tiles.tile // WARP_COORDINATES,
    )
