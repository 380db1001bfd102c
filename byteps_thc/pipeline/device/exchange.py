"""How codes become sums of all workers on the device, and the memory for both.

The codes of a buffer travel as a whole: every collective and every launch costs the host tens of microseconds, and what
pieces would overlap with each other, backward overlaps anyhow.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from byteps_thc.config import ResolvedConfig
from byteps_thc.pipeline.device.agreement import DeviceAgreement, NormMessage
from byteps_thc.pipeline.device.memory import DeviceRollback
from byteps_thc.pipeline.device.recording import Record
from byteps_thc.pipeline.statistics import StatsRecorder
from byteps_thc.transport.communicator import Communicator
from byteps_thc.transport.shards import ShardLayout, packs_sums

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc.gpu import GpuCompressor

_ALIGNED = 512  # bytes


@dataclass(frozen=True)
class Room:
    """Memory of a buffer while it is under way, uint8 but for the sums, of value_bits each.

    sent: workers * shard_bytes, with `codes` at its beginning; received: as much. sums: of the own shard. packed: the
    same as they travel. gathered: of all shards, workers * sum_bytes; `aggregate` is what decode takes of it.
    """

    sent: Tensor
    codes: Tensor
    received: Tensor
    sums: Tensor
    packed: Tensor
    gathered: Tensor
    aggregate: Tensor


class Workspace:
    """Memory that the buffers of an engine have in turn: the stream does one after the other."""

    def __init__(self, resolved: ResolvedConfig, device: torch.device) -> None:
        self._resolved = resolved
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)
        self._rooms: dict[ShardLayout, Room] = {}

    def room(self, layout: ShardLayout) -> Room:
        """Return room for a buffer of that layout; what was there before is lost."""
        if layout not in self._rooms:
            self._rooms[layout] = self._cut(layout)
        return self._rooms[layout]

    def _cut(self, layout: ShardLayout) -> Room:
        resolved, workers = self._resolved, layout.workers
        packs = packs_sums(resolved)
        all_codes = workers * layout.shard_bytes
        sums_bytes = layout.shard_codes * resolved.value_bits // 8
        sizes = [all_codes, all_codes, sums_bytes, layout.sum_bytes if packs else 0, workers * layout.sum_bytes]
        rooms = [-(-size // _ALIGNED) * _ALIGNED for size in sizes]
        if self._memory.numel() < sum(rooms):
            self._rooms.clear()
            self._memory = self._memory.new_empty(sum(rooms))
        starts = itertools.accumulate([0, *rooms[:-1]])
        sent, received, sums, packed, gathered = (
            self._memory[start : start + size] for start, size in zip(starts, sizes, strict=True)
        )
        if packs:
            aggregate = gathered[: layout.codes * resolved.sum_bits // 8]
        else:
            packed, aggregate = sums, self._numbers(gathered)[: layout.codes]
        received = received.view(workers, layout.shard_bytes)
        return Room(sent, sent[: layout.code_bytes], received, self._numbers(sums), packed, gathered, aggregate)

    def _numbers(self, memory: Tensor) -> Tensor:
        return memory if self._resolved.value_bits == 8 else memory.view(torch.uint16)


@dataclass(frozen=True)
class DeviceTools:
    """What the buffers of an engine share. communicator: of device tensors, in the order of the current stream.

    record: None: nothing is recorded, see recording.py.
    """

    compressor: GpuCompressor
    communicator: Communicator
    recorder: StatsRecorder
    rollback: DeviceRollback
    workspace: Workspace
    agreement: DeviceAgreement
    record: Record | None


def ask(tools: DeviceTools, message: NormMessage, round: int) -> None:
    """Find out whether all ranks have the same gradient, of which nothing is compressed."""
    message.begin(round)
    tools.communicator.max_(message.sent).wait()
    tools.agreement.take(message, torch.empty_like(message.max_norms))


def send_codes(tools: DeviceTools, room: Room) -> None:
    """Bring all workers' codes of this worker's shard to room.received."""
    work = tools.communicator.all_to_all(room.received.view(-1), room.sent)
    tools.recorder.add_collective(room.sent.numel(), tools.compressor.workers)
    work.wait()


def sum_shard(tools: DeviceTools, room: Room) -> None:
    """Sum this worker's shard."""
    tools.compressor.lookup_sum(room.received, room.sums)
    if packs_sums(tools.compressor.resolved):
        tools.compressor.pack_sums(room.sums, room.packed)


def gather_sums(tools: DeviceTools, room: Room) -> None:
    """Bring all workers' sums to room.gathered."""
    work = tools.communicator.all_gather(room.gathered, room.packed)
    tools.recorder.add_collective(room.gathered.numel(), tools.compressor.workers)
    work.wait()
