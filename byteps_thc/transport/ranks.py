"""THC without a server: every rank sums a shard of the codes of all ranks.

all-to-all of packed codes -> lookup_sum of the own shard -> all-gather of packed sums. Per rank and coordinate, with n
ranks, 4-bit codes and sums of s bits: (4 + s) / 8 (n - 1) / n bytes; a ring all-reduce of bf16 takes 4 (n - 1) / n.

In a reduce-scatter the shards are the rows of the gradient, and nobody needs the sums of others: no all-gather.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import override

from byteps_thc import _core
from byteps_thc.arrays import F32, U8, U16, everybody, value_dtype
from byteps_thc.config import ResolvedConfig
from byteps_thc.transport.communicator import Communicator, Waitable, max_volume_bytes
from byteps_thc.transport.max_norms import MaxNorms
from byteps_thc.transport.recorder import TrafficRecorder
from byteps_thc.transport.shards import ShardLayout, packs_sums
from byteps_thc.transport.transport import Transfer, Transport


@dataclass(frozen=True)
class Collectives:
    """One communicator for each collective of a transfer; they may be the same one if one thread starts all."""

    norms: Communicator
    codes: Communicator
    sums: Communicator


class ScatterTransport(Transport):
    """Sums rows: each rank gets the sums of the row of its number. A piece has as many rows as there are ranks.

    pool: threads that sum; None: the calling one.
    """

    codes_per_chunk = None

    def __init__(
        self,
        resolved: ResolvedConfig,
        collectives: Collectives,
        recorder: TrafficRecorder,
        pool: _core.ThreadPool | None = None,
    ) -> None:
        self.resolved, self.collectives, self.recorder, self.pool = resolved, collectives, recorder, pool

    @override
    def new_transfer(self, name: str, norms: int, codes: int) -> Transfer:
        return ScatterTransfer(self, norms, codes)

    def count(self, volume_bytes: int) -> None:
        """Report a collective."""
        self.recorder.add_collective(volume_bytes, self.resolved.workers)


class RanksTransport(ScatterTransport):
    """Sums the one row that a piece has, for all ranks."""

    @override
    def new_transfer(self, name: str, norms: int, codes: int) -> Transfer:
        return RanksTransfer(self, norms, codes)

    def unpacked(self, buffer: torch.Tensor, count: int) -> npt.NDArray[Any]:
        """Return an array for the sums in a uint8 buffer of the wire: the same memory, unless they are packed there."""
        dtype = value_dtype(self.resolved.value_bits)
        return np.zeros(count, dtype) if packs_sums(self.resolved) else buffer.numpy().view(dtype)


class ScatterTransfer(Transfer):
    """norms: words of all rows of a piece. shard_codes: codes that each rank sums."""

    def __init__(self, transport: ScatterTransport, norms: int, shard_codes: int) -> None:
        self._transport = transport
        resolved = transport.resolved
        workers = resolved.workers
        shard_bytes = _core.code_bytes(shard_codes, resolved.config.bits)
        self._max_norms = MaxNorms(norms)
        self._sent_codes = _bytes(workers * shard_bytes)
        self._shards = _bytes(workers * shard_bytes)
        self._contributions = everybody(workers)
        # NumPy views of the same memory for the kernels.
        self.codes: U8 = self._sent_codes.numpy()
        self._shard_of: list[U8] = list(self._shards.numpy().reshape(workers, shard_bytes))
        self._own_sums: npt.NDArray[Any] = np.zeros(shard_codes, value_dtype(resolved.value_bits))
        self._norm_work: Waitable
        self._code_work: Waitable

    @override
    def send_norms(self, norms: F32) -> None:
        self._max_norms.begin(norms)
        self._norm_work = self._transport.collectives.norms.max_(self._max_norms.bits)
        self._transport.count(max_volume_bytes(norms.nbytes, self._transport.resolved.workers))

    @override
    def wait_norms(self) -> F32:
        self._norm_work.wait()
        return self._max_norms.values

    @override
    def send_codes(self) -> None:
        self._code_work = self._transport.collectives.codes.all_to_all(self._shards, self._sent_codes)
        self._transport.count(self._sent_codes.numel())

    @override
    def wait_codes(self) -> None:
        self._code_work.wait()

    @override
    def sum(self) -> None:
        resolved = self._transport.resolved
        for rank, codes in enumerate(self._shard_of):
            _core.lookup_sum(
                codes,
                resolved.table.array,
                self._own_sums,
                bits=resolved.config.bits,
                add=rank > 0,
                pool=self._transport.pool,
            )

    @override
    def wait_sums(self) -> None:
        pass

    @override
    def aggregate(self) -> tuple[U8 | U16, U8 | U16]:
        return self._own_sums, self._contributions


class RanksTransfer(ScatterTransfer):
    """The one row of a piece, cut into a shard for each rank, and the sums of all shards."""

    def __init__(self, transport: RanksTransport, norms: int, codes: int) -> None:
        resolved = transport.resolved
        layout = ShardLayout.of(resolved, codes)
        super().__init__(transport, norms, layout.shard_codes)
        self._gathering = transport
        self._count = codes
        self._sent_sums = _bytes(layout.sum_bytes)
        self._sums = _bytes(layout.workers * layout.sum_bytes)
        self.codes = self.codes[: layout.code_bytes]
        self._own_sums = transport.unpacked(self._sent_sums, layout.shard_codes)
        self._all_sums = transport.unpacked(self._sums, layout.workers * layout.shard_codes)
        self._sum_work: Waitable

    @override
    def sum(self) -> None:
        super().sum()
        transport = self._gathering
        if packs_sums(transport.resolved):
            _core.pack(self._own_sums, self._sent_sums.numpy(), bits=transport.resolved.sum_bits, pool=transport.pool)
        self._sum_work = transport.collectives.sums.all_gather(self._sums, self._sent_sums)
        transport.count(self._sums.numel())

    @override
    def wait_sums(self) -> None:
        self._sum_work.wait()

    @override
    def aggregate(self) -> tuple[U8 | U16, U8 | U16]:
        if packs_sums(self._gathering.resolved):
            sum_bits, pool = self._gathering.resolved.sum_bits, self._gathering.pool
            _core.unpack(self._sums.numpy(), self._all_sums, bits=sum_bits, pool=pool)
        return self._all_sums[: self._count], self._contributions


def _bytes(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)
