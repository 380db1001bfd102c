"""THC by the process group's own all-reduce: table values, a byte each, added four at a time in 32-bit words.

look up the own codes -> all_reduce(SUM) of int32 words. As long as no sum exceeds 255, no byte carries into the next
one, so that words add up as bytes do: exactly, in any order and grouping. Whatever adds integers aggregates, then:
rings, trees, NVLink's and InfiniBand's switches. Per rank and coordinate, with n ranks: 2 (n - 1) / n bytes.

Words, as codes and sums, are where the kernels are (ranks.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc import _core
from byteps_thc.arrays import everybody
from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.transport.communicator import Communicator, Waitable
from byteps_thc.transport.ranks import HostRankNorms, HostSums, RankNorms, SumKernels
from byteps_thc.transport.recorder import TrafficRecorder
from byteps_thc.transport.transport import Requantize, Transfer, Transport

_CPU = torch.device("cpu")
_VALUE_BITS = 8
_LARGEST_SUM = (1 << _VALUE_BITS) - 1
_ALIGNED = 512  # bytes


def resolve_for_words(config: ThcConfig, workers: int) -> ResolvedConfig:
    """Return the table for that many ranks whose sums have 8 bits each.

    A granularity that is "auto" is at most 255 / workers, so that some codes may be left over. ConfigurationError,
    naming what would fit, for settings whose sums need more.
    """
    largest = _LARGEST_SUM // workers
    if config.total_bits is not None or isinstance(config.down_bits, int):
        _refuse("nobody requantizes sums that the process group adds: leave down_bits and total_bits out")
    if config.value_bits == 16:
        _refuse("value_bits=16 does not fit the bytes of a word: leave value_bits out")
    if largest < 1:
        _refuse(f"{workers} ranks have sums above {_LARGEST_SUM}, the most that fits a byte: use fewer ranks")
    granularity = (1 << config.code_bits) - 1 if config.uniform_table else config.granularity
    if granularity != "auto" and granularity > largest:
        fewer = f"at most {(largest + 1).bit_length() - 1} bits"
        fitting = fewer if config.uniform_table else f'granularity="auto", or at most {largest}'
        _refuse(
            f"granularity {granularity} * {workers} ranks = {granularity * workers} is more than {_LARGEST_SUM}, the "
            f"most that fits a byte: use {fitting}"
        )
    narrow = config.model_copy(update={"value_bits": _VALUE_BITS})
    try:
        return replace(narrow.resolve(workers), config=config)
    except ConfigurationError as error:  # with so many ranks a byte has too few levels for error feedback
        _refuse(f"{error}")


def _refuse(reason: str) -> NoReturn:
    raise ConfigurationError(f'CompressionPolicy(collective="all_reduce"): {reason}, or collective="shards"')


@dataclass(frozen=True)
class Room:
    """Memory of a piece while it is under way. codes: packed. values: a byte for every code. words: the same memory."""

    codes: Tensor
    values: Tensor
    words: Tensor


class Rooms:
    """Memory that pieces have in turn, or that one piece has alone: as large as the largest of them."""

    def __init__(self, bits: int, device: torch.device) -> None:
        self._bits = bits
        self._memory = torch.zeros(0, dtype=torch.uint8, device=device)
        self._rooms: dict[int, Room] = {}

    def room(self, codes: int) -> Room:
        """Return room for so many codes, a multiple of 4; call it between rounds: what is in other rooms is lost."""
        if codes not in self._rooms:
            self._rooms[codes] = self._cut(codes)
        return self._rooms[codes]

    def _cut(self, codes: int) -> Room:
        packed = _core.code_bytes(codes, self._bits)
        start = -(-packed // _ALIGNED) * _ALIGNED
        if self._memory.numel() < start + codes:
            self._rooms.clear()
            self._memory = self._memory.new_zeros(start + codes)
        values = self._memory[start : start + codes]
        return Room(self._memory[:packed], values, values.view(torch.int32))


class AllReduceTransport(Transport):
    """Sums by an all-reduce of the ranks of a group.

    resolved: of resolve_for_words(). norms, sums: of tensors on `device`, where `kernels` work, too; they may be the
    same one if one thread starts all.
    """

    codes_per_chunk = None

    def __init__(
        self,
        resolved: ResolvedConfig,
        norms: Communicator,
        sums: Communicator,
        recorder: TrafficRecorder,
        kernels: SumKernels,
        device: torch.device = _CPU,
    ) -> None:
        self.resolved, self.norms, self.sums = resolved, norms, sums
        self.recorder, self.kernels = recorder, kernels
        #: on a device, whose stream does one transfer after the other
        self.shared = None if isinstance(kernels, HostSums) else Rooms(resolved.table.bits, device)

    @override
    def new_transfer(self, name: str, norms: int, codes: int) -> Transfer:
        workers = self.resolved.workers
        if self.shared is not None:
            return AllReduceTransfer(self, self.shared, RankNorms(self.norms, self.recorder, workers, norms), codes)
        return HostAllReduceTransfer(self, HostRankNorms(self.norms, self.recorder, workers, norms), codes)

    def count(self, volume_bytes: int) -> None:
        """Report a collective."""
        self.recorder.add_collective(volume_bytes, self.resolved.workers)


class AllReduceTransfer(Transfer):
    """Of a piece on a device. Its tensors are those of `rooms`, and may be others in the next round."""

    def __init__(self, transport: AllReduceTransport, rooms: Rooms, norms: RankNorms, codes: int) -> None:
        self._transport, self._rooms, self._norms, self._codes = transport, rooms, norms, codes
        self.codes: Any = self.room.codes
        self._sum_work: Waitable

    @property
    def room(self) -> Room:
        """Its memory in this round."""
        return self._rooms.room(self._codes)

    @override
    def send_norms(self, norms: Any) -> None:
        self.codes = self.room.codes
        self._norms.send(norms)

    @override
    def wait_norms(self) -> Any:
        return self._norms.wait()

    @override
    def send_codes(self) -> None:
        """Do nothing: what travels is what sum() makes of them."""

    @override
    def sum(self, requantize: Requantize) -> None:
        room = self.room
        self._transport.kernels.lookup_sum(room.codes.unsqueeze(0), room.values)

    @override
    def send_sums(self) -> None:
        words = self.room.words
        self._sum_work = self._transport.sums.sum_(words)
        self._transport.count(2 * words.nbytes)

    @override
    def wait_sums(self) -> None:
        self._sum_work.wait()

    @override
    def aggregate(self) -> tuple[Any, Any]:
        return self.room.values, None


class HostAllReduceTransfer(AllReduceTransfer):
    """Of a piece in host memory, which it has alone: its kernels take NumPy arrays."""

    def __init__(self, transport: AllReduceTransport, norms: RankNorms, codes: int) -> None:
        resolved = transport.resolved
        super().__init__(transport, Rooms(resolved.table.bits, _CPU), norms, codes)
        self.codes = self.room.codes.numpy()
        self._contributions = everybody(resolved.workers)

    @override
    def send_norms(self, norms: Any) -> None:
        self._norms.send(norms)

    @override
    def aggregate(self) -> tuple[Any, Any]:
        return self.room.values.numpy(), self._contributions
