"""Where codes and sums of pieces lie while every rank sums a share of them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from byteps_thc import _core
from byteps_thc.compressor import requantized_shard, scale_groups
from byteps_thc.config import ResolvedConfig

_MULTIPLE = 64  # of codes in a shard: whole bytes for codes and packed sums of any width
_ALIGNED = 512  # bytes
_REQUANTIZED_ALIGNED = 16  # bytes: of shards of requantized sums
_SCALE_BYTES = 2


@dataclass(frozen=True)
class ShardLayout:
    """codes: of what decode() takes. shard_codes: that each rank sums; the last shards may have fewer that mean
    something.

    code_bytes: of the codes of a piece, at the beginning of workers * shard_bytes. sum_bytes: of the sums of a shard on
    the wire, sum_bits each; 0 where they do not travel. Requantized ones are a multiple of 16: codes, scales from
    scales_at on (0: there are none), anything.
    """

    workers: int
    codes: int
    shard_codes: int
    code_bytes: int
    shard_bytes: int
    sum_bytes: int
    scales_at: int = 0

    @classmethod
    def of(cls, resolved: ResolvedConfig, codes: int) -> ShardLayout:
        """Return that of a piece of one row of so many codes, padded ones included, whose sums all ranks need."""
        workers, bits = resolved.workers, resolved.table.bits
        shard_codes = -(-codes // (workers * _MULTIPLE)) * _MULTIPLE
        if resolved.down is not None:
            shard_codes = requantized_shard(codes, workers)
        sum_bytes, scales_at = shard_codes * resolved.sum_bits // 8, 0
        if resolved.down is not None:
            scales_at = sum_bytes
            used = sum_bytes + scale_groups(shard_codes) * _SCALE_BYTES
            sum_bytes = -(-used // _REQUANTIZED_ALIGNED) * _REQUANTIZED_ALIGNED
        return cls(
            workers,
            codes,
            shard_codes,
            _core.code_bytes(codes, bits),
            _core.code_bytes(shard_codes, bits),
            sum_bytes,
            scales_at,
        )

    @classmethod
    def of_rows(cls, resolved: ResolvedConfig, codes: int) -> ShardLayout:
        """Return that of a piece with a row of so many codes for every rank, which alone needs its sums."""
        row_bytes = _core.code_bytes(codes, resolved.table.bits)
        return cls(resolved.workers, codes, codes, resolved.workers * row_bytes, row_bytes, 0)

    def parts(self, shard: Tensor) -> tuple[Tensor, Tensor]:
        """Return the codes and the scales (uint16) of a shard of requantized sums, uint8[sum_bytes]; of others none."""
        if not self.scales_at:
            return shard[:0], shard[:0].view(torch.uint16)
        end = self.scales_at + scale_groups(self.shard_codes) * _SCALE_BYTES
        return shard[: self.scales_at], shard[self.scales_at : end].view(torch.uint16)


def packs_sums(resolved: ResolvedConfig) -> bool:
    """Whether sums travel in another form than they are summed in: packed into fewer bits, or requantized."""
    return resolved.down is not None or resolved.sum_bits < resolved.value_bits


@dataclass
class SumRoom:
    """Memory of a piece while it is under way, uint8 but for sums, of value_bits each. Moves when a larger one comes.

    sent: workers * shard_bytes, with `codes` at its beginning; received: as much, [workers, shard_bytes]. sums: of the
    own shard. packed: the same as they travel. gathered: of all shards, workers * sum_bytes; aggregate: what decode()
    takes of it, or of the sums where they do not travel; of requantized ones uint8[workers, sum_bytes].
    requantized: codes and scales in packed.
    """

    sent: Tensor
    codes: Tensor
    received: Tensor
    sums: Tensor
    packed: Tensor
    gathered: Tensor
    aggregate: Tensor
    requantized: tuple[Tensor, Tensor]


class Workspace:
    """Memory that pieces have in turn, or that one piece has alone: as large as the largest of them."""

    def __init__(self, resolved: ResolvedConfig, device: torch.device) -> None:
        self._resolved = resolved
        self._memory = torch.zeros(0, dtype=torch.uint8, device=device)
        self._rooms: dict[ShardLayout, SumRoom] = {}

    def room(self, layout: ShardLayout) -> SumRoom:
        """Return room for pieces of that layout, the same one for all of them.

        Call it between rounds: what is in other rooms is lost, whose tensors are others after it when this is a larger
        one.
        """
        room = self._rooms.get(layout)
        if room is None:
            room = self._rooms[layout] = self._cut(layout)
        return room

    def _cut(self, layout: ShardLayout) -> SumRoom:
        resolved, workers = self._resolved, layout.workers
        packs = packs_sums(resolved) and layout.sum_bytes > 0
        all_codes = workers * layout.shard_bytes
        sums_bytes = layout.shard_codes * resolved.value_bits // 8
        sizes = [all_codes, all_codes, sums_bytes, layout.sum_bytes if packs else 0, workers * layout.sum_bytes]
        rooms = [-(-size // _ALIGNED) * _ALIGNED for size in sizes]
        if self._memory.numel() < sum(rooms):
            self._memory = self._memory.new_zeros(sum(rooms))
            for known, room in self._rooms.items():
                vars(room).update(vars(self._cut(known)))
        starts = itertools.accumulate([0, *rooms[:-1]])
        sent, received, sums, packed, gathered = (
            self._memory[start : start + size] for start, size in zip(starts, sizes, strict=True)
        )
        return make_room(resolved, layout, sent, received, sums, packed, gathered)


class Turns:
    """Host memory that the pieces of all-reduces have in turn, for as long as something is on its way.

    Codes are a piece's own. What others send is taken from here, and given back once it is summed or decoded, so that
    there is as much of it as is under way at a time. What only one stage looks at, one piece at a time, all share.
    """

    def __init__(self, resolved: ResolvedConfig) -> None:
        self._resolved = resolved
        self._free: defaultdict[int, list[Tensor]] = defaultdict(list)  # by bytes; lists are safe between threads
        self._shared: dict[str, Tensor] = {}

    def take(self, size_bytes: int) -> Tensor:
        """Return so many bytes, which nobody else has until they are given back."""
        free = self._free[size_bytes]
        return free.pop() if free else torch.zeros(size_bytes, dtype=torch.uint8, device="cpu")

    def give_back(self, memory: Tensor) -> None:
        """Let others have it."""
        self._free[memory.numel()].append(memory)

    def shared(self, purpose: str, elements: int, dtype: torch.dtype) -> Tensor:
        """Return memory of all pieces, for a purpose of one thread; it lasts until the next call for that purpose."""
        memory = self._shared.get(purpose)
        if memory is None or memory.numel() < elements:
            memory = self._shared[purpose] = torch.zeros(elements, dtype=dtype, device="cpu")
        return memory[:elements]

    def sums_room(self, layout: ShardLayout, sent: Tensor, received: Tensor) -> tuple[SumRoom, Tensor]:
        """Return room for the sums of a piece, and the memory to give back when they are decoded."""
        packs, sums_bytes = packs_sums(self._resolved), layout.shard_codes * self._resolved.value_bits // 8
        all_sums = layout.workers * layout.sum_bytes
        # Behind the gathered sums, as they travel; -(-a // b) * b: a rounded up.
        own_at = -(-all_sums // _ALIGNED) * _ALIGNED
        memory = self.take(own_at + (layout.sum_bytes if packs else sums_bytes))
        own = memory[own_at:]
        sums = self.shared("sums", sums_bytes, torch.uint8) if packs else own
        return make_room(self._resolved, layout, sent, received, sums, own, memory[:all_sums]), memory


def make_room(
    resolved: ResolvedConfig,
    layout: ShardLayout,
    sent: Tensor,
    received: Tensor,
    sums: Tensor,
    packed: Tensor,
    gathered: Tensor,
) -> SumRoom:
    """Return room in these memories, uint8."""

    def numbers(memory: Tensor) -> Tensor:
        return memory if resolved.value_bits == 8 else memory.view(torch.uint16)

    if layout.scales_at:
        aggregate = gathered.view(layout.workers, layout.sum_bytes)
    elif packs_sums(resolved) and layout.sum_bytes > 0:
        aggregate = gathered[: layout.codes * resolved.sum_bits // 8]
    else:
        packed = sums
        aggregate = numbers(gathered if layout.sum_bytes else sums)[: layout.codes]
    received = received.view(layout.workers, layout.shard_bytes)
    return SumRoom(
        sent, sent[: layout.code_bytes], received, numbers(sums), packed, gathered, aggregate, layout.parts(packed)
    )
