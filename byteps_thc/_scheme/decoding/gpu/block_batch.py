"""A piece of a gradient, or gathered shards, on a device, among ranks that decode each other's codes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byteps_thc._base.arrays import require_tensor
from byteps_thc._base.errors import InputError
from byteps_thc._base.limits import LARGEST_WORD
from byteps_thc._scheme.decoding.codec import HEADER_BYTES, GatherPlan, MessageLayout
from byteps_thc._scheme.decoding.gpu import block_kernels
from byteps_thc._scheme.decoding.gpu.block_kernels import BEGUN_WORDS, DOWN, FIXED, HEAD, UP
from byteps_thc._scheme.decoding.gpu.block_tiles import WARPS, BlockTiles
from byteps_thc._scheme.decoding.settings import ResolvedRankCodes
from byteps_thc._scheme.gpu.launch import Launcher, register_limit
from byteps_thc._scheme.keys import signed_word
from byteps_thc._scheme.shares import Shard

_GRADIENTS = (torch.float32, torch.float16, torch.bfloat16)
_OPTIONS: dict[str, Any] = {"enable_fp_fusion": False, **register_limit()}
_encode = Launcher(block_kernels.encode_blocks_kernel, **_OPTIONS)
_recode = Launcher(block_kernels.recode_blocks_kernel, **_OPTIONS)
_decode = Launcher(block_kernels.decode_blocks_kernel, **_OPTIONS)
LAUNCHERS = {"encode": _encode, "recode": _recode, "decode": _decode}


class _Work:
    """The constant arguments of a launch, in device memory.

    exact: number of exact values. numbers: others of FIXED.
    """

    def __init__(self, tiles: BlockTiles, exact: int, numbers: Mapping[str, int]) -> None:
        self.tables = tiles.programs, tiles.words
        programs = len(tiles.programs)
        self.programs = programs + max(-(-exact // HEAD), 1)  # at least one has no tiles
        every = {"own_codes_at": 0, "own_scales_at": 0, **numbers, "exact": exact, "programs": programs}
        fixed = np.array([every[name] for name in FIXED], np.uint32)
        self.fixed = torch.from_numpy(fixed.view(np.int32)).to(tiles.words.device)


class BlockBatch:
    """A piece: one row that all ranks average (n shards), or n rows, of which each rank averages its own.

    Nothing here waits for the device: all calls are put on the current stream. Gradients and averages are contiguous,
    float32, float16 or bfloat16. Messages are uint8[size_bytes] of their layout, 16-byte aligned.

    shards: shards of all ranks, in the order of the ranks.
    columns: coordinates of a row.
    seed: of all random numbers, 64 bits.
    bits, down_bits: of a code to an owner, and of an average; None if owners keep averages.
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
            "spacing": spacing & 0xFFFFFFFF, "shift": spacing * rank, "row": columns if rows > 1 else 0,
        }  # fmt: skip
        up, down = (_places(layout) for layout in layouts)
        counts = [shard.exact.stop - shard.exact.start for shard in shards]
        values = _exact_index(rows, columns, exact)
        index = _joined([values[shard.exact] for shard in shards])
        everyone = BlockTiles.of(shards, device)
        mine = everyone.owned(rank)
        every = sum(counts)
        self._sent = _Work(everyone, every, common | up | {"ranks": 1})
        self._exact_sent = _exact_table(counts, layouts[0], index).to(device)
        if down_bits is None:
            self._last = self._up_size, UP, bits
            self._decoded = _Work(mine, counts[rank], common | up | {"ranks": ranks})
            own = index[sum(counts[:rank]) :][: counts[rank]] - rank * columns
            self._exact_decoded = _exact_table(counts[rank : rank + 1], layouts[0], own).to(device)
        else:
            self._last = self._down_size, DOWN, down_bits
            into = {f"own_{name}": place for name, place in down.items() if name != "size"}
            self._own = _Work(mine, counts[rank], common | up | into | {"ranks": ranks})
            self._decoded = _Work(everyone, every, common | down | {"ranks": 1})
            self._exact_decoded = _exact_table(counts, layouts[1], index).to(device)

    def encode(self, gradient: Tensor, sent: Tensor, header: tuple[int, int, int, int], round: int) -> None:
        """Begin a round, and write the messages sent[n] to all owners from gradient[rows * columns].

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
        """Write the message `own` of the own shard's averages to all ranks, from their messages received[n]."""
        _require("received", received, self._ranks * self._up_size)
        _require("own", own, self._down_size)
        work = self._own
        arguments = received, own, work.fixed, self._begun, *work.tables
        _recode(work.programs, arguments, (self._bits, self._down_bits), WARPS)

    def decode(self, messages: Tensor, out: Tensor) -> None:
        """Write the averages out[columns] of messages[n]; NaN if ranks differ, in this round or before.

        messages: averages of all owners, or codes of all ranks if averages stay with their owners.
        """
        size, hop, bits = self._last
        require_tensor("out", out, _GRADIENTS, self._columns)
        _require("messages", messages, self._ranks * size)
        work = self._decoded
        tensors = messages, out, work.fixed, self._begun, self._state, self._differ
        _decode(work.programs, (*tensors, self._exact_decoded, *work.tables), (hop, bits, False), WARPS)


class GatherBatch:
    """Shards that ranks gather: each rank encodes its own shard, and decodes all. Tensors and calls: as BlockBatch.

    settings: of codes. round: of all gathers.
    """

    def __init__(
        self, plan: GatherPlan, rank: int, settings: ResolvedRankCodes, *, round: int, device: torch.device
    ) -> None:
        ranks, seed, layout = len(plan.shards), settings.codes.seed, plan.message
        self._bits, self._size_bytes = settings.codes.bits, layout.size_bytes
        self._columns, self._ranks = plan.columns, ranks
        self._header = 0, 0, signed_word(round), LARGEST_WORD, 0  # words that pass the check of fingerprints
        self._begun = torch.zeros(BEGUN_WORDS, dtype=torch.int32, device=device)
        self._state = torch.zeros(4, dtype=torch.int32, device=device)
        self._differ = torch.zeros(1, dtype=torch.uint8, device=device)
        numbers = _places(layout) | {
            "ranks": 1, "seed": seed & 0xFFFFFFFF, "seed_high": seed >> 32, "tensor": plan.shards[rank].tensor,
            "spacing": 0, "shift": 0,
        }  # fmt: skip
        tiles = BlockTiles.of(plan.shards, device)
        own, every = (_exact_index(rows, plan.columns, plan.exact) for rows in (1, ranks))
        self._sent = _Work(tiles.owned(rank), len(own), numbers | {"messages": 1, "row": 0})
        self._exact_sent = _exact_table([len(own)], layout, own).to(device)
        self._gathered = _Work(tiles, len(every), numbers | {"messages": ranks, "row": plan.columns})
        self._exact_gathered = _exact_table([len(own)] * ranks, layout, every).to(device)

    def encode(self, shard: Tensor, message: Tensor) -> None:
        """Write the message of the own shard[columns]."""
        require_tensor("shard", shard, _GRADIENTS, self._columns)
        _require("message", message, self._size_bytes)
        work = self._sent
        tensors = shard, message, work.fixed, self._begun
        _encode(work.programs, (*tensors, *self._header, self._exact_sent, *work.tables), (self._bits,), WARPS)

    def decode(self, gathered: Tensor, out: Tensor) -> None:
        """Write all shards, out[n * columns], from the messages gathered[n]."""
        require_tensor("out", out, _GRADIENTS, self._ranks * self._columns)
        _require("gathered", gathered, self._ranks * self._size_bytes)
        work = self._gathered
        tensors = gathered, out, work.fixed, self._begun, self._state, self._differ
        _decode(work.programs, (*tensors, self._exact_gathered, *work.tables), (UP, self._bits, True), WARPS)


def _places(layout: MessageLayout) -> dict[str, int]:
    return {"size": layout.size_bytes // 16, "codes_at": layout.codes_at // 16, "scales_at": layout.scales_at // 8}


def _exact_index(rows: int, columns: int, exact: Sequence[tuple[int, int]]) -> Tensor:
    """Return the coordinates of exact values in a gradient, row by row."""
    within = [torch.arange(start, stop, device="cpu") for start, stop in exact]
    return (torch.arange(rows, device="cpu").unsqueeze(1) * columns + _joined(within)).view(-1)


def _exact_table(counts: Sequence[int], layout: MessageLayout, index: Tensor) -> Tensor:
    """Return int64[2, exact values]: words of messages, coordinates."""
    places = ((count, (owner * layout.size_bytes + HEADER_BYTES) // 4) for owner, count in enumerate(counts))
    return torch.stack([_joined([torch.arange(first, first + count, device="cpu") for count, first in places]), index])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0, dtype=torch.int64, device="cpu"), *parts])


def _require(name: str, messages: Tensor, size: int) -> None:
    require_tensor(name, messages, (torch.uint8,), size)
    if messages.data_ptr() % 16:
        raise InputError(f"{name} must begin at a multiple of 16 bytes")
