"""Sums of codes over BytePS's own servers and vans (the paper's THC-colocated).

THC's compressor (byteps_thc/csrc/byteps) sends the packed codes, and looks them up on BytePS's server, whose reducer
adds the values. 8 (or 16) bits a coordinate come back. BytePS has no maximum for norms: every worker adds its norms, as
bits, into its row of a tensor of zeros, int32[workers, norms], so that all workers get all rows.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._base.arrays import F32, U8, U16, HostZeros, everybody
from byteps_thc._base.errors import ConfigurationError, InputError
from byteps_thc._native import _core
from byteps_thc._net.byteps import process
from byteps_thc._net.byteps.library import declare_tensor
from byteps_thc._net.byteps.process import tensor_names
from byteps_thc._net.byteps.push_pull import Handle, declare, different_ranks, push_pull_async_inplace, synchronize
from byteps_thc._net.transport import TrafficRecorder, Transfer, Transport
from byteps_thc._scheme.adding.server_codes import ResolvedCodes


@dataclass(frozen=True)
class PartitionShape:
    """A partition. norms: words of the maximum. padded: coordinates with padding. priority: of its pushes."""

    name: str
    norms: int
    padded: int
    priority: int = field(default=0, repr=False)


class BytepsTransport(Transport):
    """One worker's partitions, each a transfer. BytePS fixes its keys in advance, so later ones are impossible.

    Collective after BytePS's init(): all workers make the same transports and send the same rounds. partitions: all, in
    the same order on all workers, with names unlike other transports'. worker: bps.rank(). deadline_s: of each wait.
    zeros: allocates the arrays of codes and sums. A first round finds wrong set-ups: raises ConfigurationError if
    the workers' settings differ, BytePS has no compressor or would not use it, or a server does not look codes up, and
    DeadlineError if a worker or server does not answer.
    """

    codes_per_chunk: int | None = None

    def __init__(
        self,
        resolved: ResolvedCodes,
        partitions: Sequence[PartitionShape],
        *,
        worker: int,
        recorder: TrafficRecorder,
        deadline_s: float = 60.0,
        zeros: HostZeros = np.zeros,
    ) -> None:
        _check_job(resolved, worker)
        sizes_bytes = [shape.padded * sum_bytes(resolved) for shape in partitions]
        if sizes_bytes:
            check_environment(os.environ, smallest_bytes=min(sizes_bytes), largest_bytes=max(sizes_bytes))
        self.resolved, self.worker, self.deadline_s = resolved, worker, deadline_s
        self.zeros, self.recorder = zeros, recorder
        self.contributions = everybody(resolved.workers)
        table, cut = resolved.table, os.environ.get("BYTEPS_PARTITION_BYTES")  # keys depend on the cut
        shared = (resolved.shared_hash, table.bits, table.values, resolved.value_bits, tuple(partitions))
        settings = shared, cut
        digest = hashlib.sha256(repr(settings).encode()).hexdigest()
        # The digest is in the names, because BytePS fixes a name's size and compressor for good.
        self._transfers = {s.name: BytepsTransfer(self, s, f"THC.{digest[:8]}.{s.name}") for s in partitions}
        if different := different_ranks(settings, deadline_s):
            raise ConfigurationError(
                f"worker(s) {', '.join(map(str, different))} and this one ({worker}) have different settings of "
                "THC, models or BYTEPS_PARTITION_BYTES: start all with the same"
            )
        for transfer in self._transfers.values():  # in the same order everywhere, before the first use
            transfer.declare()
        for _ in tensor_names(""):  # the tensors that a name alternates between
            for transfer in self._transfers.values():
                transfer.try_out()

    @override
    def new_transfer(self, name: str, norms: int, codes: int) -> "BytepsTransfer":
        """Return the partition's transfer; InputError if none has that name and size."""
        transfer = self._transfers.get(name)
        if transfer is None or (transfer.shape.norms, transfer.shape.padded) != (norms, codes):
            raise InputError(f"piece {name!r} of {norms} norms and {codes} codes is none of BytePS's partitions")
        return transfer


class BytepsTransfer(Transfer):
    """One partition, with its tensors at BytePS. Sums are valid until the next send_codes()."""

    def __init__(self, transport: BytepsTransport, shape: PartitionShape, name: str) -> None:
        resolved, zeros = transport.resolved, transport.zeros
        self.shape = shape
        self.codes: U8 = zeros(_core.code_bytes(shape.padded, resolved.table.bits), np.uint8)
        self._transport = transport
        self._norms_name, self._sums_name = f"{name}.norms", f"{name}.sums"
        self._norms = torch.zeros(resolved.workers, shape.norms, dtype=torch.int32, device="cpu")
        self._sums = torch.from_numpy(zeros(shape.padded, np.uint8 if resolved.value_bits == 8 else np.int32))
        self._pushed_norms: Handle
        self._pushed_codes: Handle

    @override
    def send_norms(self, norms: F32) -> None:
        self._push_norms(norms)
        self._transport.recorder.add(sent_bytes=self._norms.nbytes, received_bytes=self._norms.nbytes)

    @override
    def wait_norms(self) -> F32:
        synchronize(self._pushed_norms, self._transport.deadline_s)
        largest: F32 = self._norms.numpy().max(axis=0).view(np.float32)
        return largest

    @override
    def send_codes(self) -> None:
        self._push_codes()
        self._transport.recorder.add(sent_bytes=self.codes.nbytes)

    @override
    def wait_sums(self) -> None:
        synchronize(self._pushed_codes, self._transport.deadline_s)
        self._transport.recorder.add(received_bytes=self._values().nbytes)

    @override
    def aggregate(self) -> tuple[U8 | U16, U8 | U16]:
        return self._values(), self._transport.contributions

    def declare(self) -> None:
        table = self._transport.resolved.table
        settings = {
            "compressor_type": "thc",
            "thc_bits": str(table.bits),
            "thc_coordinates": str(self.shape.padded),
            "thc_table": ",".join(map(str, table.values)),
        }
        for name in tensor_names(self._sums_name):
            declare_tensor(name, settings)
        declare(self._norms_name)

    def try_out(self) -> None:
        """Run an uncounted round with known results: the largest code everywhere. ConfigurationError if they differ."""
        transport, resolved = self._transport, self._transport.resolved
        self._push_norms(np.full(self.shape.norms, transport.worker + 1, np.float32))
        largest = self.wait_norms()
        self.codes[:] = 0xFF
        self._push_codes()
        synchronize(self._pushed_codes, transport.deadline_s)
        expected = resolved.table.granularity * resolved.workers
        if not ((largest == resolved.workers).all() and (self._values() == expected).all()):
            raise ConfigurationError(
                "BytePS does not add THC's codes up: its servers and workers must run the BytePS of 'make byteps', "
                "with BYTEPS_MIN_COMPRESS_BYTES=0 before BytePS is initialised and no BYTEPS_SERVER_ENGINE_BLOCKING"
            )

    def _push_norms(self, norms: F32) -> None:
        self._norms.zero_()
        self._norms.numpy()[self._transport.worker] = norms.view(np.int32)
        self._pushed_norms = _push(self._norms, self._norms_name, self.shape.priority)

    def _push_codes(self) -> None:
        self._sums.numpy().view(np.uint8)[: self.codes.size] = self.codes
        self._pushed_codes = _push(self._sums, self._sums_name, self.shape.priority)

    def _values(self) -> U8 | U16:
        array = self._sums.numpy()
        return array if self._sums.dtype == torch.uint8 else array.view(np.uint16)[: self.shape.padded]


def _push(tensor: Tensor, name: str, priority: int) -> Handle:
    return push_pull_async_inplace(tensor, average=False, name=name, priority=priority)


def _check_job(resolved: ResolvedCodes, worker: int) -> None:
    workers = process.size()
    if workers != resolved.workers or worker != process.rank():
        raise ConfigurationError(
            f"this is worker {process.rank()} of {workers} in BytePS, and not {worker} of {resolved.workers}"
        )
    if workers < 2:
        raise ConfigurationError("with one worker BytePS uses no servers: start at least two, or omit Compression.thc")
    if process.local_size() > 1:
        raise ConfigurationError(
            f"{process.local_size()} processes on this host would have their codes added up before the servers look "
            "them up: start one process per host, or use the network route"
        )


_DEFAULT_PARTITION_BYTES = 4096000  # BytePS's default
_LARGEST_PARTITION_BYTES = 1 << 30


def sum_bytes(resolved: ResolvedCodes) -> int:
    """Return the bytes of a coordinate in BytePS's tensor of sums: uint8, or int32 if sums need 16 bits."""
    return 1 if resolved.value_bits == 8 else 4


def prepare_environment(resolved: ResolvedCodes) -> None:
    """Set the variables that are not set, and check the others; call it before BytePS is initialised.

    BYTEPS_THREADPOOL_SIZE: threads that run compressors; BytePS has none unless it is set. BYTEPS_MIN_COMPRESS_BYTES:
    smaller tensors are not compressed. BYTEPS_PARTITION_BYTES: larger tensors are cut. Raises ConfigurationError.
    """
    codes = resolved.codes
    needed_bytes = _core.padded_size(codes.partition_coordinates, codes.rotation_block) * sum_bytes(resolved)
    if needed_bytes > _LARGEST_PARTITION_BYTES:
        raise ConfigurationError(f"partition_bytes={codes.partition_bytes} is too large for BytePS's servers: lower it")
    os.environ.setdefault("BYTEPS_THREADPOOL_SIZE", "2")
    os.environ.setdefault("BYTEPS_MIN_COMPRESS_BYTES", "0")
    os.environ.setdefault("BYTEPS_PARTITION_BYTES", str(max(needed_bytes, _DEFAULT_PARTITION_BYTES)))
    check_environment(os.environ, smallest_bytes=None, largest_bytes=needed_bytes)


def check_environment(environment: Mapping[str, str], *, smallest_bytes: int | None, largest_bytes: int) -> None:
    """Raise ConfigurationError unless BytePS would compress tensors of both sizes, each in one piece."""
    if _number(environment, "BYTEPS_THREADPOOL_SIZE", 0) < 1:
        raise ConfigurationError("BytePS runs compressors in BYTEPS_THREADPOOL_SIZE threads: set it to 1 or more")
    if _number(environment, "BYTEPS_ENABLE_ASYNC", 0):
        raise ConfigurationError(
            "BYTEPS_ENABLE_ASYNC adds gradients up over steps; THC's sums are of one step: unset it"
        )
    least = _number(environment, "BYTEPS_MIN_COMPRESS_BYTES", 1 << 16)
    if smallest_bytes is not None and least > smallest_bytes:
        raise ConfigurationError(
            f"BYTEPS_MIN_COMPRESS_BYTES={least} leaves partitions of {smallest_bytes} bytes uncompressed: set it to 0"
        )
    limit = _number(environment, "BYTEPS_PARTITION_BYTES", _DEFAULT_PARTITION_BYTES)
    if limit < largest_bytes:
        raise ConfigurationError(
            f"BYTEPS_PARTITION_BYTES={limit} would cut a partition of {largest_bytes} bytes: raise it, the same for "
            "all workers, or lower ServerCodes.partition_bytes"
        )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{name} must be a whole number, not {text!r}") from None
