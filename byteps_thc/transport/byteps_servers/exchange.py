"""Sums of codes over BytePS's own servers and vans (the paper's THC-colocated).

Up go packed codes, because THC's compressor (byteps_thc/csrc/byteps) sends nothing else of the tensor; BytePS's server
looks them up in the table, its reducer adds the values, and 8 (or 16) bits a coordinate come back.

Maximum norms, for which BytePS has no operation: every worker writes the bits of its norms into its row of a tensor of
zeros, int32[workers, norms]; after BytePS has added the tensors up, everyone has all rows.
"""

from __future__ import annotations

import enum
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from byteps_thc import _core
from byteps_thc.arrays import F32, U8, U16, HostZeros
from byteps_thc.config import ResolvedConfig
from byteps_thc.errors import ConfigurationError, InputError
from byteps_thc.transport.byteps import process
from byteps_thc.transport.byteps.push_pull import (
    Handle,
    declare,
    poll,
    push_pull_async_inplace,
    synchronize,
)
from byteps_thc.transport.byteps.tensor_names import tensor_names
from byteps_thc.transport.byteps.worker_library import worker_library
from byteps_thc.transport.byteps_servers.environment import check_environment, sum_bytes
from byteps_thc.transport.max_norms import write_ordered

_Array = TypeVar("_Array")

_DIGEST_WORDS = 8


@dataclass(frozen=True)
class PartitionShape:
    """A partition. norms: words to find the maximum of; padded: coordinates with padding."""

    name: str
    norms: int
    padded: int


class _Stage(enum.Enum):
    IDLE = "between rounds"
    NORMS = "waiting for max norms"
    NORMS_KNOWN = "between max norms and codes"
    CODES = "waiting for sums"


class _Partition:
    """Buffers and progress of one partition."""

    def __init__(self, shape: PartitionShape, name: str, resolved: ResolvedConfig, zeros: HostZeros) -> None:
        self.shape = shape
        self.stage = _Stage.IDLE
        self.norms_name, self.sums_name = f"{name}.norms", f"{name}.sums"
        self.norms = torch.zeros(resolved.workers, shape.norms, dtype=torch.int32)
        self.sums = torch.from_numpy(zeros(shape.padded, np.uint8 if resolved.value_bits == 8 else np.int32))
        self.code_bytes = _core.code_bytes(shape.padded, resolved.config.bits)

    def max_norms(self) -> F32:
        """What BytePS has made of the norms."""
        self.advance(_Stage.NORMS, _Stage.NORMS_KNOWN)
        largest: F32 = self.norms.numpy().max(axis=0).view(np.float32)
        return largest

    def values(self) -> U8 | U16:
        """What BytePS has made of the codes."""
        self.advance(_Stage.CODES, _Stage.IDLE)
        array = self.sums.numpy()
        return array if self.sums.dtype == torch.uint8 else array.view(np.uint16)[: self.shape.padded]

    def advance(self, before: _Stage, after: _Stage) -> None:
        if self.stage is not before:
            raise InputError(
                f"partition {self.shape.name!r} is {self.stage.value}, not {before.value}: "
                "max_norms, wait, push_codes, wait make a round"
            )
        self.stage = after


@dataclass(frozen=True)
class ExchangeHandle(Generic[_Array]):
    """A max_norms or push_codes in flight; _Array is what wait returns for it."""

    pushed: Handle
    result: Callable[[], _Array]


class BytepsExchange:
    """One worker's side. Collective: all workers make the same exchanges, in the same order, after BytePS's init().

    resolved: the same on all workers. partitions: all there will be, in an order that is the same on all workers; their
    names must differ from those of other exchanges. worker: bps.rank(). deadline_s: of each wait. zeros: what makes
    the arrays that sums arrive in.

    Sends a first round, so that wrong set-ups are found here: raises ConfigurationError when the workers' settings
    differ, when BytePS has no compressor or would not use it, or when one of its servers does not look codes up;
    DeadlineError when a worker or server does not answer.

    Calls for different partitions may come from different threads.
    """

    def __init__(
        self,
        resolved: ResolvedConfig,
        partitions: Sequence[PartitionShape],
        *,
        worker: int,
        deadline_s: float = 60.0,
        zeros: HostZeros = np.zeros,
    ) -> None:
        _check_job(resolved, worker)
        sizes_bytes = [shape.padded * sum_bytes(resolved) for shape in partitions]
        if sizes_bytes:
            check_environment(os.environ, smallest_bytes=min(sizes_bytes), largest_bytes=max(sizes_bytes))
        self._resolved = resolved
        self._worker = worker
        self._deadline_s = deadline_s
        digest = _settings_digest(resolved, partitions)
        # The digest is in the names, because BytePS fixes a name's size and compressor for good.
        self._partitions = [_Partition(s, f"THC.{digest[:4].hex()}.{s.name}", resolved, zeros) for s in partitions]
        self._compare_settings(digest)
        self._declare()
        for _ in tensor_names(""):  # each of the tensors that a name alternates between
            for partition in range(len(self._partitions)):
                self._try_out(partition)

    def max_norms(self, partition: int, norms: F32, *, priority: int = 0) -> ExchangeHandle[F32]:
        """Start finding the maximum of norms (float32[norms], not negative) over the workers; NaN is above all.

        partition: index into the partitions given. priority: the highest first, when BYTEPS_SCHEDULING_CREDIT is set.
        wait returns float32[norms]. InputError when the partition is not between rounds.
        """
        state = self._partitions[partition]
        _check_size("norms", norms.size, state.shape.norms)
        state.advance(_Stage.IDLE, _Stage.NORMS)
        state.norms.zero_()
        write_ordered(norms, state.norms.numpy()[self._worker])
        return ExchangeHandle(_push(state.norms, state.norms_name, priority), state.max_norms)

    def push_codes(self, partition: int, codes: U8, *, priority: int = 0) -> ExchangeHandle[U8 | U16]:
        """Start adding up the table values of codes: uint8, packed codes of all padded coordinates. They are copied.

        wait returns uint8 or uint16 (value_bits) [padded], valid until the partition's next push_codes. InputError when
        the partition's max norms have not been waited for in this round.
        """
        state = self._partitions[partition]
        _check_size("codes", codes.size, state.code_bytes)
        state.advance(_Stage.NORMS_KNOWN, _Stage.CODES)
        state.sums.numpy().view(np.uint8)[: codes.size] = codes
        return ExchangeHandle(_push(state.sums, state.sums_name, priority), state.values)

    def ready(self, handle: ExchangeHandle[_Array]) -> bool:
        """Return whether wait would return at once."""
        return poll(handle.pushed)

    def wait(self, handle: ExchangeHandle[_Array]) -> _Array:
        """Return the result of max_norms or push_codes, once.

        DeadlineError after deadline_s: a worker or server is gone, and the exchange cannot be used any more.
        """
        synchronize(handle.pushed, self._deadline_s)
        return handle.result()

    def _compare_settings(self, digest: bytes) -> None:
        """Raise ConfigurationError on all workers unless they have the same digest."""
        rows = torch.zeros(self._resolved.workers, _DIGEST_WORDS, dtype=torch.int32)
        rows.numpy()[self._worker] = np.frombuffer(digest, np.int32)
        synchronize(_push(rows, "THC.settings", 0), self._deadline_s)
        different = [worker for worker, row in enumerate(rows.numpy()) if row.tobytes() != digest]
        if different:
            raise ConfigurationError(
                f"worker(s) {', '.join(map(str, different))} and this one ({self._worker}) have different settings of "
                "THC, models or BYTEPS_PARTITION_BYTES: start all with the same"
            )

    def _declare(self) -> None:
        """Give all tensors their keys, in the same order everywhere, before the first of them is used."""
        table = self._resolved.table
        for state in self._partitions:
            settings = {
                "compressor_type": "thc",
                "thc_bits": str(table.bits),
                "thc_coordinates": str(state.shape.padded),
                "thc_table": ",".join(map(str, table.values)),
            }
            for name in tensor_names(state.sums_name):
                worker_library().declare(name, settings)
            declare(state.norms_name)

    def _try_out(self, partition: int) -> None:
        """One round whose results are known: the largest code everywhere. ConfigurationError when they are others."""
        state, resolved = self._partitions[partition], self._resolved
        norms = np.full(state.shape.norms, self._worker + 1, np.float32)
        largest = self.wait(self.max_norms(partition, norms))
        sums = self.wait(self.push_codes(partition, np.full(state.code_bytes, 0xFF, np.uint8)))
        expected = resolved.table.granularity * resolved.workers
        if not ((largest == resolved.workers).all() and (sums == expected).all()):
            raise ConfigurationError(
                "BytePS does not add THC's codes up: its servers and workers must run the BytePS of 'make byteps', "
                "with BYTEPS_MIN_COMPRESS_BYTES=0 before BytePS is initialised and no BYTEPS_SERVER_ENGINE_BLOCKING"
            )


def _push(tensor: Tensor, name: str, priority: int) -> Handle:
    return push_pull_async_inplace(tensor, average=False, name=name, priority=priority)


def _check_job(resolved: ResolvedConfig, worker: int) -> None:
    workers = process.size()
    if workers != resolved.workers or worker != process.rank():
        raise ConfigurationError(
            f"this is worker {process.rank()} of {workers} in BytePS, and not {worker} of {resolved.workers}"
        )
    if workers < 2:
        raise ConfigurationError("with one worker BytePS uses no servers, and there is nothing to add up")
    if process.local_size() > 1:
        raise ConfigurationError(
            f"{process.local_size()} processes on this host would have their codes added up before the servers look "
            "them up: start one process per host, or use the network route"
        )


def _settings_digest(resolved: ResolvedConfig, partitions: Sequence[PartitionShape]) -> bytes:
    table = resolved.table
    shared = (resolved.shared_hash, table.bits, table.values, resolved.value_bits, tuple(partitions))
    cut = os.environ.get("BYTEPS_PARTITION_BYTES")  # keys depend on it
    return hashlib.sha256(repr((shared, cut)).encode()).digest()


def _check_size(name: str, given: int, wanted: int) -> None:
    if given != wanted:
        raise InputError(f"{name} must have {wanted} elements, not {given}")
