"""Where codes and sums of pieces lie while every rank sums a share of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from byteps_thc import _core
from byteps_thc.config import ResolvedConfig

_MULTIPLE = 64  # of codes in a shard: whole bytes for codes and packed sums of any width
_ALIGNED = 512  # bytes


@dataclass(frozen=True)
class ShardLayout:
    """codes: of what decode() takes. shard_codes: that each rank sums; the last shards may have fewer that mean
    something.

    code_bytes: of the codes of a piece, at the beginning of workers * shard_bytes. sum_bytes: of the sums of a shard on
    the wire, sum_bits each; 0 where they do not travel.
    """

    workers: int
    codes: int
    shard_codes: int
    code_bytes: int
    shard_bytes: int
    sum_bytes: int

    @classmethod
    def of(cls, resolved: ResolvedConfig, codes: int) -> ShardLayout:
        """Return that of a piece of one row of so many codes, padded ones included, whose sums all ranks need."""
        workers, bits = resolved.workers, resolved.config.bits
        shard_codes = -(-codes // (workers * _MULTIPLE)) * _MULTIPLE
        return cls(
            workers,
            codes,
            shard_codes,
            _core.code_bytes(codes, bits),
            _core.code_bytes(shard_codes, bits),
            shard_codes * resolved.sum_bits // 8,
        )

    @classmethod
    def of_rows(cls, resolved: ResolvedConfig, codes: int) -> ShardLayout:
        """Return that of a piece with a row of so many codes for every rank, which alone needs its sums."""
        row_bytes = _core.code_bytes(codes, resolved.config.bits)
        return cls(resolved.workers, codes, codes, resolved.workers * row_bytes, row_bytes, 0)


def packs_sums(resolved: ResolvedConfig) -> bool:
    """Whether sums take fewer bits on the wire than value_bits."""
    return resolved.sum_bits < resolved.value_bits


@dataclass
class SumRoom:
    """Memory of a piece while it is under way, uint8 but for sums, of value_bits each. Moves when a larger one comes.

    sent: workers * shard_bytes, with `codes` at its beginning; received: as much, [workers, shard_bytes]. sums: of the
    own shard. packed: the same as they travel. gathered: of all shards, workers * sum_bytes; aggregate: what decode()
    takes of it, or of the sums where they do not travel.
    """

    sent: Tensor
    codes: Tensor
    received: Tensor
    sums: Tensor
    packed: Tensor
    gathered: Tensor
    aggregate: Tensor


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
        if packs:
            aggregate = gathered[: layout.codes * resolved.sum_bits // 8]
        else:
            packed = sums
            aggregate = self._numbers(gathered if layout.sum_bytes else sums)[: layout.codes]
        received = received.view(workers, layout.shard_bytes)
        return SumRoom(sent, sent[: layout.code_bytes], received, self._numbers(sums), packed, gathered, aggregate)

    def _numbers(self, memory: Tensor) -> Tensor:
        return memory if self._resolved.value_bits == 8 else memory.view(torch.uint16)
