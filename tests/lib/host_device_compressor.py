"""Compressor with the interface of GpuCompressor, on CPU tensors: the logic of engines on a device without Triton."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import byteps_thc.torch.lanes.engines as lane_engines
from byteps_thc import Compressor, _core
from byteps_thc.arrays import everybody, residual_of_tensor
from byteps_thc.block_plan import WHOLE, BlockPlan
from byteps_thc.compressor import SCALE_GROUP, requantized_shard, scale_groups
from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.device_message import HEADER_WORDS, Beside, Message
from byteps_thc.pipeline import factory, kernels
from byteps_thc.pipeline.flat_engine import FlatEngine
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.thc_engines import device_engine
from byteps_thc.transport.among_ranks import resolve_among_ranks
from byteps_thc.transport.groups import open_communicator
from byteps_thc.transport.ranks import HostSums


class HostDeviceBatch:
    """See gpu.DeviceBatch."""

    def __init__(
        self,
        compressor: Compressor,
        names: Sequence[Sequence[str]],
        spans: Sequence[slice],
        residual: Tensor | None,
        plan: BlockPlan = WHOLE,
        decoded: int = 0,
        beside: Beside | None = None,
    ) -> None:
        self._compressor = compressor
        self.message: Message | None = None
        beside = beside or Beside(None, (), ())
        self._taken = beside.exact(len(names), spans[-1].stop)
        self.exact = None if self._taken is None else self._taken.values
        self._columns, self._decoded_row, self._rows = beside.columns, decoded, len(names)
        self._holes = torch.cat([torch.arange(0), *(torch.arange(*hole) for hole in beside.holes)])
        self.residual = residual
        rows, columns = len(names), spans[-1].stop
        self._spans = [
            slice(row * columns + span.start, row * columns + span.stop) for row in range(rows) for span in spans
        ]
        self.sizes = [span.stop - span.start for span in self._spans]
        within = rows * [plan.within(span) for span in spans]
        counts = (compressor.sizes(size, own)[0] for size, own in zip(self.sizes, within, strict=True))
        blocks = np.cumsum([0, *counts]).tolist()
        self._blocks = [slice(*cut) for cut in itertools.pairwise(blocks)]
        self.norms, self.max_norms = torch.zeros(blocks[-1]), torch.zeros(blocks[-1])
        self.keep = torch.zeros(len(self.sizes), dtype=torch.int32)
        self.clamped = torch.zeros(len(self.sizes), dtype=torch.int64)
        self.energy = torch.zeros(len(self.sizes), dtype=torch.float64)
        self._parts = [
            compressor.partition(
                name,
                size,
                plan=own,
                residual=None if residual is None else residual_of_tensor(residual[span]),
                norms=self.norms[at].numpy(),
            )
            for name, span, size, own, at in zip(
                itertools.chain(*names), self._spans, self.sizes, within, self._blocks, strict=True
            )
        ]
        self._padded = [padded_of(compressor, size) for size in self.sizes]
        self.padded = sum(self._padded) // rows
        self._decoded = self._parts[decoded * len(spans) :][: len(spans)]
        self._decoded_spans = spans
        self._round = 0

    def begin(self, round: int) -> None:
        self._round = round

    def measure(self, gradient: Tensor, begin: tuple[int, tuple[int, int, int, int]] | None = None) -> None:
        gradient = gradient.view(-1)
        if self._taken is not None:
            self._taken.values.copy_(gradient[self._taken.index])
        gradient[self._holes] = 0
        if begin is not None:
            self._round = begin[0]
        for part, span in zip(self._parts, self._spans, strict=True):
            self._compressor.measure(part, gradient[span], round=self._round)
        if begin is not None:
            assert self.message is not None
            self.message.write(begin[1])
            self.message.words[HEADER_WORDS:] = self.norms.view(torch.int32) & 0x7FFFFFFF

    def encode(self, gradient: Tensor, codes: Tensor) -> None:
        if self.message is not None:
            self.message.take(self.max_norms)
        assert self._parts[0].gradient is None or self._parts[0].gradient.ctypes.data == gradient.data_ptr()
        first = 0
        for i, (part, at, size) in enumerate(zip(self._parts, self._blocks, self._padded, strict=True)):
            mine = self._compressor.encode(part, self.max_norms[at].numpy())
            codes[first : first + len(mine)].copy_(torch.from_numpy(mine))
            first += size * self._compressor.table.bits // 8
            self.clamped[i] = part.clamped
            self.energy[i] = part.energy
            self.keep[i] = part.residual_kept or part.residual is None
        assert first == len(codes)
        self._forget_holes()

    def _forget_holes(self) -> None:
        if self.residual is not None:
            self.residual[self._holes] = 0

    def requantize(self, sums: Tensor, codes: Tensor, scales: Tensor, received: Tensor | None) -> None:
        if received is not None:
            HostSums(self._compressor.resolved).lookup_sum(received, sums)
        down = self._compressor.resolved.down
        assert down is not None
        first, start = self._compressor.worker * sums.numel(), 0
        for part, size in zip(self._parts, self._padded, strict=True):
            begin, end = max(start, first), min(start + part.padded, first + sums.numel())
            if begin < end:
                own = slice(begin - first, end - first)
                self._compressor.requantize(
                    part, sums[own].numpy(), codes[own.start * down.bits // 8 : own.stop * down.bits // 8].numpy(),
                    scales[own.start // SCALE_GROUP :][: scale_groups(end - begin)].numpy(), first=begin - start,
                )  # fmt: skip
            start += size
        self._forget_holes()

    def decode(
        self,
        aggregate: Tensor,
        out: Tensor,
        *,
        sum_bits: int | None = None,
        contributions: Tensor | None = None,
        codes_per_chunk: int | None = None,
    ) -> None:
        if self._compressor.resolved.down is not None:
            self._decode_requantized(aggregate, out)
            self._put_exact(out)
            return
        assert contributions is None or len(self._decoded) == 1
        resolved = self._compressor.resolved
        sums = aggregate
        if sum_bits is not None:
            sums = torch.zeros(self.padded, dtype=torch.uint8 if resolved.value_bits == 8 else torch.uint16)
            _core.unpack(aggregate.numpy(), sums.numpy(), bits=sum_bits)
        assert sums.numel() == self.padded
        workers = everybody(resolved.workers) if contributions is None else contributions.numpy()
        codes_per_chunk = codes_per_chunk if contributions is not None else None
        first = 0
        for part, span in zip(self._decoded, self._decoded_spans, strict=True):
            mine = sums[first : first + part.padded]
            self._compressor.decode(part, mine.numpy(), workers, out[span], codes_per_chunk=codes_per_chunk)
            first += part.padded
        self._put_exact(out)

    def _put_exact(self, out: Tensor) -> None:
        if self.exact is not None:
            assert self.message is not None
            average = self.exact.view(self._rows, -1)[self._decoded_row] / self._compressor.workers
            out[self._columns] = average.masked_fill(self.message.differ, torch.nan).to(out.dtype)

    def _decode_requantized(self, shards: Tensor, out: Tensor) -> None:
        first, codes = 0, requantized_shard(self.padded, len(shards))
        values = torch.zeros(len(shards) * codes, dtype=torch.uint8)
        scales = torch.zeros(scale_groups(values.numel()), dtype=torch.uint16)
        HostSums(self._compressor.resolved).expand(shards, values, scales)
        for part, span, size in zip(self._parts, self._spans, self._padded, strict=True):
            mine, limits = values[first : first + part.padded], scales[first // SCALE_GROUP :]
            self._compressor.decode(part, mine.numpy(), limits[: scale_groups(part.padded)].numpy(), out[span])
            first += size


def padded_of(compressor: Compressor, coordinates: int) -> int:
    """See GpuCompressor.sizes()."""
    padded = compressor.sizes(coordinates)[1]
    return padded if compressor.resolved.down is None else scale_groups(padded) * SCALE_GROUP


class HostDeviceCompressor:
    """See GpuCompressor."""

    device = torch.device("cpu")

    def __init__(self, resolved: ResolvedConfig, *, workers: int, worker: int) -> None:
        self._compressor = Compressor(resolved, workers=workers, worker=worker, threads=1)
        self.resolved, self.config = resolved, resolved.config
        self.workers, self.worker = workers, worker

    def sizes(self, coordinates: int, plan: BlockPlan = WHOLE) -> tuple[int, int]:
        return self._compressor.sizes(coordinates, plan)[0], padded_of(self._compressor, coordinates)

    def batch(
        self, named: list[tuple[str, slice]], residual: Tensor | None, plan: BlockPlan = WHOLE
    ) -> HostDeviceBatch:
        return self.matrix([[name for name, _ in named]], [span for _, span in named], residual, plan)

    def matrix(self, *arguments: Any) -> HostDeviceBatch:
        return HostDeviceBatch(self._compressor, *arguments)

    def lookup_sum(self, codes: Tensor, sums: Tensor) -> None:
        HostSums(self.resolved).lookup_sum(codes, sums)

    def pack_sums(self, codes: Tensor, sums: Tensor, packed: Tensor) -> None:
        HostSums(self.resolved).pack_sums(codes, sums, packed)


def make_host_device_engine(
    process_group: dist.ProcessGroup, config: ThcConfig, policy: CompressionPolicy, *, compress_alone: bool = False
) -> FlatEngine:
    """Return what factory.collective_engine() makes of a group with NCCL, for one with gloo and CPU tensors."""
    workers, worker = process_group.size(), process_group.rank()
    resolved = resolve_among_ranks(config, policy.collective, workers)
    compressor = cast(Any, HostDeviceCompressor(resolved, workers=workers, worker=worker))
    communicator = open_communicator(process_group, policy.deadline_s)
    return device_engine(compressor, policy, communicator, compress_alone=compress_alone)


def take_cpu_for_device(device: torch.device = HostDeviceCompressor.device) -> None:
    """From now on, engines with servers in this process compress on a device, unless kernels="host": with this
    compressor, on CPU tensors.

    device: "cpu", or another name of it, from and to which gradients are then copied.
    """

    def open_compressor(_: torch.device, config: ThcConfig | ResolvedConfig, *, workers: int, worker: int) -> Any:
        resolved = config if isinstance(config, ResolvedConfig) else config.resolve(workers)
        compressor = HostDeviceCompressor(resolved, workers=workers, worker=worker)
        compressor.device = device
        return compressor

    def device_of(*arguments: Any, needs_nccl: bool = True, tried: bool = True) -> Any:  # noqa: ARG001
        policy: CompressionPolicy = arguments[2]
        return None if needs_nccl or policy.kernels == "host" else device

    kernels.open_gpu_compressor = open_compressor
    factory.device_of = device_of
    lane_engines.device_of = device_of


def make_host_device_rows(process_group: dist.ProcessGroup, config: ThcConfig, policy: CompressionPolicy) -> FlatEngine:
    """The same for factory.row_engine()."""
    workers, worker = process_group.size(), process_group.rank()
    compressor = cast(Any, HostDeviceCompressor(config.resolve(workers), workers=workers, worker=worker))
    return device_engine(compressor, policy, open_communicator(process_group, policy.deadline_s), sharded=True)
