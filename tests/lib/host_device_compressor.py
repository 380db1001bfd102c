"""Compressor with the interface of GpuCompressor, on CPU tensors: the device engine's logic without Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from byteps_thc import Compressor, _core
from byteps_thc.compressor import Partition
from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.pipeline.device.engine import DeviceEngine
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.transport.groups import open_communicator


@dataclass
class HostDevicePartition:
    """See gpu.DevicePartition."""

    own: Partition
    coordinates: int
    padded: int
    residual: Tensor | None
    norms: Tensor
    max_norms: Tensor
    codes: Tensor
    keep: Tensor
    clamped: Tensor
    energy: Tensor


class HostDeviceCompressor:
    """See GpuCompressor."""

    def __init__(self, resolved: ResolvedConfig, *, workers: int, worker: int) -> None:
        self._compressor = Compressor(resolved, workers=workers, worker=worker, threads=1)
        self.resolved, self.config = resolved, resolved.config
        self.workers, self.worker = workers, worker
        self.device = torch.device("cpu")
        self.sizes = self._compressor.sizes

    def partition(
        self,
        name: str,
        coordinates: int,
        *,
        residual: Tensor | None,
        norms: Tensor,
        max_norms: Tensor,
        codes: Tensor,
    ) -> HostDevicePartition:
        kept = None if residual is None else residual.numpy()
        own = self._compressor.partition(name, coordinates, residual=kept, norms=norms.numpy())
        return HostDevicePartition(
            own,
            coordinates,
            own.padded,
            residual,
            norms,
            max_norms,
            codes,
            keep=torch.zeros(1, dtype=torch.int32),
            clamped=torch.zeros(1, dtype=torch.int64),
            energy=torch.zeros(1, dtype=torch.float64),
        )

    def measure(self, partition: HostDevicePartition, gradient: Tensor, *, round: int) -> Tensor:
        self._compressor.measure(partition.own, gradient, round=round)
        return partition.norms

    def encode(self, partition: HostDevicePartition, max_norms: Tensor) -> Tensor:
        own = partition.own
        codes = self._compressor.encode(own, max_norms.numpy())
        assert len(partition.codes) == len(codes)
        partition.codes.copy_(torch.from_numpy(codes))
        partition.clamped.fill_(own.clamped)
        partition.energy.fill_(float(partition.norms.double().square().sum()))
        partition.keep.fill_(own.residual_kept or own.residual is None)
        return partition.codes

    def lookup_sum(self, codes: Tensor, sums: Tensor) -> None:
        table = self.resolved.table.array
        for worker, mine in enumerate(codes):
            _core.lookup_sum(mine.numpy(), table, sums.numpy(), bits=self.config.bits, add=worker > 0)

    def pack_sums(self, sums: Tensor, packed: Tensor) -> None:
        _core.pack(sums.numpy(), packed.numpy(), bits=self.resolved.sum_bits)

    def decode(
        self,
        partition: HostDevicePartition,
        aggregate: Tensor,
        contributions: None,
        out: Tensor,
        *,
        sum_bits: int | None = None,
    ) -> None:
        assert contributions is None
        own = partition.own
        dtype = torch.uint8 if self.resolved.value_bits == 8 else torch.uint16
        sums = aggregate
        if sum_bits is not None:
            sums = torch.zeros(own.padded, dtype=dtype)
            _core.unpack(aggregate.numpy(), sums.numpy(), bits=sum_bits)
        everybody = np.full(1, self.workers, np.uint8)
        self._compressor.decode(own, sums.numpy(), everybody, out)


def make_host_device_engine(
    process_group: dist.ProcessGroup, config: ThcConfig, policy: CompressionPolicy, *, compress_alone: bool = False
) -> DeviceEngine:
    """Return what factory.collective_engine() makes of a group with NCCL, for one with gloo and CPU tensors."""
    workers, worker = process_group.size(), process_group.rank()
    resolved = config.resolve(workers, packed_sums=True)
    compressor = cast(Any, HostDeviceCompressor(resolved, workers=workers, worker=worker))
    communicator = open_communicator(process_group, policy.deadline_s)
    return DeviceEngine(compressor, policy, communicator, compress_alone=compress_alone)
