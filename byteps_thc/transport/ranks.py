"""THC without a server: every rank sums a shard of the codes of all ranks.

all-to-all of packed codes -> lookup_sum of the own shard -> all-gather of packed sums. Per rank and coordinate, with n
ranks, 4-bit codes and sums of s bits: (4 + s) / 8 (n - 1) / n bytes; a ring all-reduce of bf16 takes 4 (n - 1) / n.

The owner of a shard may requantize its sums to a few bits, with a scale for every 256 of them (ThcConfig.down_bits):
fewer bytes, or finer codes for as many. All decode the same bytes: averages have the same bits on all ranks, too.

In a reduce-scatter the shards are the rows of the gradient, and nobody needs the sums of others: no all-gather.

Norms, codes and sums are where the kernels are. In memory of a device transfers have all of it in turn, because its
stream does one after the other; in host memory codes are each transfer's own, and the rest is as much as is under way.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc import _core
from byteps_thc.arrays import everybody
from byteps_thc.compressor import scale_groups
from byteps_thc.config import ResolvedConfig
from byteps_thc.transport.communicator import Communicator, Waitable
from byteps_thc.transport.gloo import max_volume_bytes
from byteps_thc.transport.recorder import TrafficRecorder
from byteps_thc.transport.shards import ShardLayout, SumRoom, Turns, Workspace, packs_sums
from byteps_thc.transport.transport import Requantize, Transfer, Transport

_CPU = torch.device("cpu")
_WORD_BYTES = 4


@dataclass(frozen=True)
class Collectives:
    """One communicator for each collective of a transfer; they may be the same one if one thread starts all."""

    norms: Communicator
    codes: Communicator
    sums: Communicator


class SumKernels(Protocol):
    """What a rank sums with; see gpu.GpuCompressor."""

    def lookup_sum(self, codes: Tensor, sums: Tensor) -> None:
        """Write the sums of table values; codes: uint8[ranks, bytes]. sums: uint8 or uint16 (value_bits)."""

    def pack_sums(self, codes: Tensor, sums: Tensor, packed: Tensor) -> None:
        """Write the sums of lookup_sum() as a stream of sum_bits each, uint8. sums: memory for them."""


class HostSums(SumKernels):
    """In host memory. pool: threads that sum; None: the calling one."""

    def __init__(self, resolved: ResolvedConfig, pool: _core.ThreadPool | None = None) -> None:
        self._resolved, self._pool = resolved, pool
        self._sum_bits = resolved.sum_bits

    @override
    def lookup_sum(self, codes: Tensor, sums: Tensor) -> None:
        table, out = self._resolved.table, sums.numpy()
        for rank, mine in enumerate(codes.numpy()):
            _core.lookup_sum(mine, table.array, out, bits=table.bits, add=rank > 0, pool=self._pool)

    @override
    def pack_sums(self, codes: Tensor, sums: Tensor, packed: Tensor) -> None:
        self.lookup_sum(codes, sums)
        _core.pack(sums.numpy(), packed.numpy(), bits=self._sum_bits, pool=self._pool)

    def unpack_sums(self, packed: Tensor, sums: npt.NDArray[Any]) -> None:
        """Write what pack_sums() has packed."""
        _core.unpack(packed.numpy(), sums, bits=self._sum_bits, pool=self._pool)

    def expand(self, shards: Tensor, values: Tensor, scales: Tensor) -> None:
        """Write what decode() takes of requantized sums: table values, uint8, and scales, uint16, of all shards.

        shards: uint8[ranks, bytes]: of each its codes, then its scales, then anything.
        """
        down, ranks = self._resolved.down, len(shards)
        assert down is not None
        for shard, own, limits in zip(shards, values.view(ranks, -1), scales.view(ranks, -1), strict=True):
            end = own.numel() * down.bits // 8
            _core.lookup_sum(shard[:end].numpy(), down.array, own.numpy(), bits=down.bits, add=False, pool=self._pool)
            limits.copy_(shard[end : end + limits.nbytes].view(torch.uint16))


class RankNorms:
    """The way of a piece's norms, words of a device, to their maximum over the ranks."""

    def __init__(self, communicator: Communicator, recorder: TrafficRecorder, workers: int, words: int) -> None:
        self._communicator, self._recorder, self._workers = communicator, recorder, workers
        self._volume_bytes = max_volume_bytes(words * _WORD_BYTES, workers)
        self._norms: Any
        self._work: Waitable

    def send(self, norms: Any) -> None:
        """See Transfer.send_norms."""
        self._norms = norms
        self._start(norms)

    def wait(self) -> Any:
        """See Transfer.wait_norms."""
        self._work.wait()
        return self._norms

    def _start(self, words: Tensor) -> None:
        self._work = self._communicator.max_(words)
        self._recorder.add_collective(self._volume_bytes, self._workers)


class HostRankNorms(RankNorms):
    """Of NumPy arrays."""

    def __init__(self, communicator: Communicator, recorder: TrafficRecorder, workers: int, words: int) -> None:
        super().__init__(communicator, recorder, workers, words)
        # torch's memory: gloo's thread may be the last to let go of it, at the end of Python, when nobody may ask for
        # the interpreter's lock as the end of a NumPy array's memory would.
        self._words = torch.zeros(words, dtype=torch.int32, device="cpu")
        self._norms = self._words.numpy().view(np.float32)

    @override
    def send(self, norms: Any) -> None:
        self._norms.view(np.int32)[:] = norms.view(np.int32)
        self._start(self._words)


class RanksTransport(Transport):
    """Sums among the ranks of a group.

    sharded: a piece has as many rows as there are ranks, and each rank gets the sums of its own; otherwise it has one,
    of which all ranks get the sums. collectives: of tensors on `device`, where `sums` works, too.
    """

    codes_per_chunk = None

    def __init__(
        self,
        resolved: ResolvedConfig,
        collectives: Collectives,
        recorder: TrafficRecorder,
        sums: SumKernels,
        device: torch.device = _CPU,
        *,
        sharded: bool = False,
    ) -> None:
        self.resolved, self.collectives, self.recorder, self.sums = resolved, collectives, recorder, sums
        self.sharded = sharded
        #: on a device
        self.workspace = None if isinstance(sums, HostSums) else Workspace(resolved, device)
        self.lends = sharded and self.workspace is None
        #: of all-reduces in host memory
        self.turns = None if sharded or self.workspace is not None else Turns(resolved)
        self._free: defaultdict[int, list[Transfer]] = defaultdict(list)  # by codes

    @override
    def new_transfer(self, name: str, norms: int, codes: int) -> Transfer:
        if self.lends and self._free[codes]:
            return self._free[codes].pop()
        layout = (ShardLayout.of_rows if self.sharded else ShardLayout.of)(self.resolved, codes)
        if self.turns is not None:
            return TurnsTransfer(self, self.turns, layout, norms)
        kind = HostRowsTransfer if self.workspace is None else RanksTransfer
        return kind(self, layout, norms)

    @override
    def done(self, transfer: Transfer) -> None:
        if isinstance(transfer, TurnsTransfer):
            transfer.give_back()
        if self.lends:
            assert isinstance(transfer, RanksTransfer)
            self._free[transfer.layout.codes].append(transfer)

    def norms(self, words: int) -> RankNorms:
        """Return the way of so many words, norms and what travels with them."""
        kind = HostRankNorms if self.workspace is None else RankNorms
        return kind(self.collectives.norms, self.recorder, self.resolved.workers, words)

    def count(self, volume_bytes: int) -> None:
        """Report a collective."""
        self.recorder.add_collective(volume_bytes, self.resolved.workers)


class RanksTransfer(Transfer):
    """Of a piece on a device. Its tensors are the workspace's, and may be others in the next round."""

    def __init__(self, transport: RanksTransport, layout: ShardLayout, norms: int) -> None:
        self._transport = transport
        self.layout = layout
        #: its memory
        self.room = (transport.workspace or Workspace(transport.resolved, _CPU)).room(layout)
        self.codes: Any = self.room.codes
        self._norms = transport.norms(norms)
        self._code_work: Waitable
        self._sum_work: Waitable

    @override
    def send_norms(self, norms: Any) -> None:
        self.codes = self.room.codes
        self._norms.send(norms)

    @override
    def wait_norms(self) -> Any:
        return self._norms.wait()

    @override
    def send_codes(self) -> None:
        room = self.room
        self._code_work = self._transport.collectives.codes.all_to_all(room.received.view(-1), room.sent)
        self._transport.count(room.sent.numel())

    @override
    def wait_codes(self) -> None:
        self._code_work.wait()

    @override
    def sum(self, requantize: Requantize) -> None:
        room = self.room
        if self.layout.scales_at:
            self._requantize(requantize, room)
        elif room.packed.data_ptr() != room.sums.data_ptr():
            self._transport.sums.pack_sums(room.received, room.sums, room.packed)
        else:
            self._transport.sums.lookup_sum(room.received, room.sums)

    def _requantize(self, requantize: Requantize, room: SumRoom) -> None:
        requantize(room.received, room.sums, *room.requantized)

    @override
    def send_sums(self) -> None:
        if self._transport.sharded:
            return
        room = self.room
        self._sum_work = self._transport.collectives.sums.all_gather(room.gathered, room.packed)
        self._transport.count(room.gathered.numel())

    @override
    def wait_sums(self) -> None:
        if not self._transport.sharded:
            self._sum_work.wait()

    @override
    def aggregate(self) -> tuple[Any, Any]:
        return self.room.aggregate, None


class HostRowsTransfer(RanksTransfer):
    """Of rows in host memory: its kernels take NumPy arrays, and each rank decodes the sums of its own row."""

    def __init__(self, transport: RanksTransport, layout: ShardLayout, norms: int) -> None:
        super().__init__(transport, layout, norms)
        self.codes = self.room.codes.numpy()
        self._contributions = everybody(transport.resolved.workers)

    @override
    def send_norms(self, norms: Any) -> None:
        self._norms.send(norms)

    @override
    def aggregate(self) -> tuple[Any, Any]:
        return self.room.aggregate.numpy(), self._contributions


class TurnsTransfer(RanksTransfer):
    """Of a piece in host memory whose sums all ranks need: its kernels take NumPy arrays, and sums not packed.

    It has codes of its own. What arrives has a place from when it is asked for until it is summed, or decoded.
    """

    def __init__(self, transport: RanksTransport, turns: Turns, layout: ShardLayout, norms: int) -> None:
        self._transport, self._turns, self.layout = transport, turns, layout
        resolved = transport.resolved
        self._sent = torch.zeros(layout.workers * layout.shard_bytes, dtype=torch.uint8, device="cpu")
        self.codes = self._sent[: layout.code_bytes].numpy()
        self._norms = transport.norms(norms)
        self._contributions = everybody(resolved.workers)
        self._sums: Tensor | None = None  # that are decoded at last
        self._unpacks = packs_sums(resolved) and not layout.scales_at

    @override
    def send_norms(self, norms: Any) -> None:
        self._norms.send(norms)

    @override
    def send_codes(self) -> None:
        self._received = self._turns.take(self._sent.numel())
        self._code_work = self._transport.collectives.codes.all_to_all(self._received, self._sent)
        self._transport.count(self._sent.numel())

    @override
    def sum(self, requantize: Requantize) -> None:
        self.room, self._sums = self._turns.sums_room(self.layout, self._sent, self._received)
        super().sum(requantize)
        self._turns.give_back(self._received)

    @override
    def aggregate(self) -> tuple[Any, Any]:
        sums, room, codes = self._transport.sums, self.room, self.layout.codes
        assert isinstance(sums, HostSums)
        expanded = self.layout.workers * self.layout.shard_codes
        if self.layout.scales_at:
            values = self._turns.shared("values", expanded, torch.uint8)
            scales = self._turns.shared("scales", scale_groups(expanded), torch.uint16)
            sums.expand(room.aggregate, values, scales)
            return values[:codes].numpy(), scales[: scale_groups(codes)].numpy()
        if not self._unpacks:
            return room.aggregate.numpy(), self._contributions
        dtype = torch.uint8 if self._transport.resolved.value_bits == 8 else torch.uint16
        unpacked = self._turns.shared("values", expanded, dtype).numpy()
        sums.unpack_sums(room.gathered, unpacked)
        return unpacked[:codes], self._contributions

    def give_back(self) -> None:
        """Let other pieces have the memory of the sums, which are decoded."""
        if self._sums is not None:
            self._turns.give_back(self._sums)
            self._sums = None

    @override
    def _requantize(self, requantize: Requantize, room: SumRoom) -> None:
        self._transport.sums.lookup_sum(room.received, room.sums)
        codes, scales = room.requantized
        requantize(None, room.sums.numpy(), codes.numpy(), scales.numpy())
