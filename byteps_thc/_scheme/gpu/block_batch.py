"""A piece of a gradient on a device, among ranks that decode each other's codes: to messages and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byteps_thc._scheme.arrays import require_tensor
from byteps_thc._scheme.block_plan import HEADER_BYTES, MessageLayout, Shard
from byteps_thc._scheme.errors import InputError
from byteps_thc._scheme.gpu.block_kernels import (
    BEGUN_WORDS,
    DOWN,
    FIXED,
    HEAD,
    UP,
    decode_blocks_kernel,
    encode_blocks_kernel,
    recode_blocks_kernel,
)
from byteps_thc._scheme.gpu.block_tiles import WARPS, BlockTiles
from byteps_thc._scheme.gpu.kernels import register_limit
from byteps_thc._scheme.gpu.launch import Launcher
from byteps_thc._scheme.keys import signed_word

_GRADIENTS = (torch.float32, torch.float16, torch.bfloat16)
_OPTIONS: dict[str, Any] = {"enable_fp_fusion": False, **register_limit()}
_encode = Launcher(encode_blocks_kernel, **_OPTIONS)
_recode = Launcher(recode_blocks_kernel, **_OPTIONS)
_decode = Launcher(decode_blocks_kernel, **_OPTIONS)


class _Work:
    """The constant arguments of a launch, in device memory.

    exact: number of exact values. numbers: others of FIXED.
    """

    def __init__(self, tiles: BlockTiles, exact: int, numbers: Mapping[str, int]) -> None:
        self.tables = tiles.tiles, tiles.words
        self.programs = tiles.programs + max(-(-exact // HEAD), 1)  # at least one has no tiles
        every = {"own_codes_at": 0, "own_scales_at": 0, **numbers, "exact": exact, "programs": tiles.programs}
        fixed = np.array([every[name] for name in FIXED], np.uint32)
        self.fixed = torch.from_numpy(fixed.view(np.int32)).to(tiles.words.device)


class BlockBatch:
    """A piece: one row that all ranks average (n shards), or n rows, of which each rank averages its own.

    Nothing here waits for the device: all calls are put on the current stream.

    shards: shards of all ranks, in the order of the ranks.
    rank: this rank.
    columns: coordinates of a row.
    seed: seed of all random numbers, 64 bits.
    bits: bits of a code to an owner, 1 .. 8.
    down_bits: bits of a code of an average, None if owners keep them.
    layouts: messages to owners, and from owners (the first if averages stay).
    state, differ: int32[4] and bool[] of the engine's DeviceAgreement.
    exact: (start, stop) of columns that travel exactly, in all rows, ascending and disjoint.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        rank: int,
        columns: int,
        *,
        seed: int,
        bits: int,
        down_bits: int | None,
        layouts: tuple[MessageLayout, MessageLayout],
        state: Tensor,
        differ: Tensor,
        exact: Sequence[tuple[int, int]] = (),
    ) -> None:
        device, ranks = state.device, len(shards)
        rows = max(shard.row for shard in shards) + 1
        self._bits, self._down_bits = bits, down_bits
        self._up_size, self._down_size = (layout.size_bytes for layout in layouts)
        self._ranks, self._size, self._columns = ranks, rows * columns, columns
        self.agreement = state, differ
        self._state, self._differ = state, differ.view(torch.uint8)
        self._begun = torch.zeros(BEGUN_WORDS, dtype=torch.int32, device=device)
        spacing = (1 << 32) // ranks
        common = {
            "messages": ranks, "seed": seed & 0xFFFFFFFF, "seed_high": seed >> 32, "tensor": shards[rank].tensor,
            "spacing": spacing & 0xFFFFFFFF, "shift": spacing * rank,
        }  # fmt: skip
        up, down = (_places(layout) for layout in layouts)
        counts = [shard.exact.stop - shard.exact.start for shard in shards]
        index = _exact_index(rows, columns, shards, exact)
        everyone = BlockTiles.of([*enumerate(shards)], columns, device)
        mine = BlockTiles.of([(0, replace(shards[rank], row=0))], columns, device)
        every = sum(counts)
        self._sent = _Work(everyone, every, common | up | {"ranks": 1})
        self._exact_sent = _exact_table(counts, layouts[0], index).to(device)
        if down_bits is None:
            self._decoded = _Work(mine, counts[rank], common | up | {"ranks": ranks})
            own = index[sum(counts[:rank]) :][: counts[rank]] - rank * columns
            self._exact_decoded = _exact_table(counts[rank : rank + 1], layouts[0], own).to(device)
        else:
            into = {f"own_{name}": place for name, place in down.items() if name != "size"}
            self._own = _Work(mine, counts[rank], common | up | into | {"ranks": ranks})
            self._decoded = _Work(everyone, every, common | down | {"ranks": 1})
            self._exact_decoded = _exact_table(counts, layouts[1], index).to(device)

    def encode(self, gradient: Tensor, sent: Tensor, header: tuple[int, int, int, int], round: int) -> None:
        """Begin a round, and write the messages to all owners.

        gradient: contiguous, float32, float16 or bfloat16[rows * columns].
        sent: uint8[n, size_bytes], 16-byte aligned.
        header: header of DeviceAgreement: number of the gradient, its round in 31 bits, two words of its fingerprint.
        round: 32 bits, the same on all ranks, never twice for a name.
        """
        require_tensor("gradient", gradient, _GRADIENTS, self._size)
        _require("sent", sent, self._ranks * self._up_size)
        number, round31, largest, complement = header
        numbers = number, round31, signed_word(round), largest, complement
        work = self._sent
        tensors = gradient, sent, work.fixed, self._begun
        _encode(work.programs, (*tensors, *numbers, self._exact_sent, *work.tables), (self._bits,), WARPS)

    def recode(self, received: Tensor, own: Tensor) -> None:
        """Write the message of the own shard's averages to all ranks.

        received: uint8[n, size_bytes] of all ranks.
        own: uint8[size_bytes of averages], 16-byte aligned.
        """
        if self._down_bits is None:
            raise InputError("averages of rows stay with their owners: use average()")
        _require("received", received, self._ranks * self._up_size)
        _require("own", own, self._down_size)
        work = self._own
        arguments = received, own, work.fixed, self._begun, *work.tables
        _recode(work.programs, arguments, (self._bits, self._down_bits), WARPS)

    def decode(self, gathered: Tensor, out: Tensor) -> None:
        """Write the averages, NaN if ranks differ, in this round or before.

        gathered: uint8[n, size_bytes] of all owners.
        out: contiguous, float32, float16 or bfloat16[columns].
        """
        if self._down_bits is None:
            raise InputError("averages of rows stay with their owners: use average()")
        self._average(gathered, out, self._down_size, DOWN, self._down_bits)

    def average(self, received: Tensor, out: Tensor) -> None:
        """Write the averages of the own row, NaN if ranks differ, in this round or before.

        received: uint8[n, size_bytes] of all ranks.
        out: as in decode().
        """
        if self._down_bits is not None:
            raise InputError("averages travel to all ranks: use recode() and decode()")
        self._average(received, out, self._up_size, UP, self._bits)

    def _average(self, messages: Tensor, out: Tensor, size: int, hop: int, bits: int) -> None:
        require_tensor("out", out, _GRADIENTS, self._columns)
        _require("messages", messages, self._ranks * size)
        work = self._decoded
        arguments = (
            messages, out, work.fixed, self._begun, self._state, self._differ, self._exact_decoded, *work.tables,
        )  # fmt: skip
        _decode(work.programs, arguments, (hop, bits), WARPS)


def _places(layout: MessageLayout) -> dict[str, int]:
    return {"size": layout.size_bytes // 16, "codes_at": layout.codes_at // 16, "scales_at": layout.scales_at // 8}


def _exact_index(rows: int, columns: int, shards: Sequence[Shard], exact: Sequence[tuple[int, int]]) -> Tensor:
    """Return the coordinates of exact values in the gradient, in the order of the shards."""
    within = [torch.arange(start, stop, device="cpu") for start, stop in exact]
    index = (torch.arange(rows, device="cpu").unsqueeze(1) * columns + _joined(within)).view(-1)
    return _joined([index[shard.exact] for shard in shards])


def _exact_table(counts: Sequence[int], layout: MessageLayout, index: Tensor) -> Tensor:
    """Return int64[2, exact values]: words of messages, coordinates."""
    words = [
        torch.arange(count, device="cpu") + (owner * layout.size_bytes + HEADER_BYTES) // 4
        for owner, count in enumerate(counts)
    ]
    return torch.stack([_joined(words), index])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0, dtype=torch.int64, device="cpu"), *parts])


def _require(name: str, messages: Tensor, size: int) -> None:
    require_tensor(name, messages, (torch.uint8,), size)
    if messages.data_ptr() % 16:
        raise InputError(f"{name} must begin at a multiple of 16 bytes")
