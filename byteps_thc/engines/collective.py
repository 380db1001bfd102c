"""THC without a server: every rank sums a shard of the codes of all ranks.

all-to-all of packed codes -> lookup_sum of the own shard -> all-gather of packed sums. Per rank and coordinate, with n
ranks, 4-bit codes and sums of s bits: (4 + s) / 8 (n - 1) / n bytes; a ring all-reduce of bf16 takes 4 (n - 1) / n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from byteps_thc import _core
from byteps_thc.arrays import F32, U8, U16, value_dtype
from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.engines.handshake import require_same_settings, require_same_table
from byteps_thc.engines.lanes import Lane, Waitable, max_volume_bytes, open_lane
from byteps_thc.engines.max_norms import MaxNorms
from byteps_thc.engines.policy import CompressionPolicy
from byteps_thc.engines.thc_engine import ThcEngine
from byteps_thc.statistics import StatsRecorder

#: Bytes of gradient in a piece at most, unless ThcConfig.partition_bytes is given: DDP's buckets of 25 MiB, which their
#: last parameter may make larger, are three pieces, so that stages of one bucket overlap.
_PIECE_BYTES = 9 << 20
_SHARD_CODES = 64  # shards are multiples of it: whole bytes for codes and packed sums of any width


class CollectiveEngine(ThcEngine):
    """Averages over the ranks of a torch process group (gloo or NCCL), which are the servers too.

    All ranks of the group must make it, with the same settings (ConfigurationError naming what differs). Pieces have
    9 MiB of gradient at most unless config says something else.
    """

    def __init__(self, process_group: dist.ProcessGroup, config: ThcConfig, policy: CompressionPolicy) -> None:
        workers = process_group.size()
        if "partition_bytes" not in config.model_fields_set:
            config = config.model_copy(update={"partition_bytes": _PIECE_BYTES})
        # A lane per stage: the operations of a lane start in the order of its thread, the same on all ranks.
        exact = open_lane(process_group, policy.deadline_s)
        require_same_settings(exact, workers, {"engine": "collective"} | config.model_dump() | policy.model_dump())
        resolved = config.resolve(workers, packed_sums=True)  # on all ranks or none
        require_same_table(exact, resolved)
        norms, codes, sums = (open_lane(process_group, policy.deadline_s) for _ in range(3))
        recorder = StatsRecorder()
        super().__init__(
            resolved,
            policy,
            worker=process_group.rank(),
            transport=CollectiveTransport(resolved, norms, codes, sums, recorder),
            exact=exact.sum_,
            recorder=recorder,
        )


class CollectiveTransport:
    """See transport.Transport. norms, codes, sums: lanes for the three collectives of a piece."""

    codes_per_chunk = None

    def __init__(self, resolved: ResolvedConfig, norms: Lane, codes: Lane, sums: Lane, recorder: StatsRecorder) -> None:
        self.resolved = resolved
        self.norms, self.codes, self.sums = norms, codes, sums
        self.recorder = recorder

    def new_transfer(self, blocks: int, codes: int) -> CollectiveTransfer:
        """See Transport."""
        return CollectiveTransfer(self, blocks, codes)

    @property
    def packs_sums(self) -> bool:
        """Whether sums take fewer bits on the wire than value_bits."""
        return self.resolved.sum_bits < self.resolved.value_bits

    def unpacked(self, buffer: torch.Tensor, count: int) -> npt.NDArray[Any]:
        """Return an array for the sums in a uint8 buffer of the wire: the same memory, unless they are packed there."""
        dtype = value_dtype(self.resolved.value_bits)
        return np.zeros(count, dtype) if self.packs_sums else buffer.numpy().view(dtype)

    def close(self) -> None:
        """See Transport."""


class CollectiveTransfer:
    """See transport.Transfer."""

    def __init__(self, transport: CollectiveTransport, blocks: int, codes: int) -> None:
        self._transport = transport
        config, workers = transport.resolved.config, transport.resolved.workers
        shard_codes = -(-codes // (workers * _SHARD_CODES)) * _SHARD_CODES
        shard_bytes = shard_codes * config.bits // 8
        sum_bytes = shard_codes * transport.resolved.sum_bits // 8
        self._codes = codes
        self._max_norms = MaxNorms(blocks)
        self._sent_codes = _bytes(workers * shard_bytes)
        self._shards = _bytes(workers * shard_bytes)
        self._sent_sums = _bytes(sum_bytes)
        self._sums = _bytes(workers * sum_bytes)
        # NumPy views of the same memory for the kernels.
        self._shard_of: list[U8] = list(self._shards.numpy().reshape(workers, shard_bytes))
        self._own_sums = transport.unpacked(self._sent_sums, shard_codes)
        self._all_sums = transport.unpacked(self._sums, workers * shard_codes)
        self._contributions: U8 = np.full(1, workers, np.uint8)
        #: See Transfer.
        self.codes: U8 = self._sent_codes.numpy()[: _core.code_bytes(codes, config.bits)]
        self._norm_work: Waitable
        self._code_work: Waitable
        self._sum_work: Waitable

    def send_norms(self, norms: F32) -> None:
        """See Transfer."""
        self._max_norms.begin(norms)
        self._norm_work = self._transport.norms.max_(self._max_norms.bits)
        self._count(max_volume_bytes(norms.nbytes, self._transport.resolved.workers))

    def wait_norms(self) -> F32:
        """See Transfer."""
        self._norm_work.wait()
        return self._max_norms.values

    def send_codes(self) -> None:
        """See Transfer."""
        self._code_work = self._transport.codes.all_to_all(self._shards, self._sent_codes)
        self._count(self._sent_codes.numel())

    def wait_codes(self) -> None:
        """See Transfer."""
        self._code_work.wait()

    def send_sums(self) -> None:
        """See Transfer. Sums the own shard of all ranks."""
        resolved = self._transport.resolved
        for rank, codes in enumerate(self._shard_of):
            _core.lookup_sum(codes, resolved.table.array, self._own_sums, bits=resolved.config.bits, add=rank > 0)
        if self._transport.packs_sums:
            _core.pack(self._own_sums, self._sent_sums.numpy(), bits=resolved.sum_bits)
        self._sum_work = self._transport.sums.all_gather(self._sums, self._sent_sums)
        self._count(self._sums.numel())

    def wait_sums(self) -> None:
        """See Transfer."""
        self._sum_work.wait()

    def aggregate(self) -> tuple[U8 | U16, U8]:
        """See Transfer."""
        if self._transport.packs_sums:
            _core.unpack(self._sums.numpy(), self._all_sums, bits=self._transport.resolved.sum_bits)
        return self._all_sums[: self._codes], self._contributions

    def _count(self, volume_bytes: int) -> None:
        self._transport.recorder.add_collective(volume_bytes, self._transport.resolved.workers)


def _bytes(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)
