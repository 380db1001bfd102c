"""What partitions whose codes travel through host memory are compressed with: kernels there, or on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from byteps_thc._engine.device.staged_compressor import StagedCompressor
from byteps_thc._engine.device.stream import SideStream
from byteps_thc._engine.server_piece import PartitionCompressor
from byteps_thc._engine.staging import StagedSum, Staging, make_device_staging, make_staging, pinned_zeros
from byteps_thc._net.communicator import ExactSum
from byteps_thc._net.recorder import TrafficRecorder
from byteps_thc._scheme.arrays import HostZeros
from byteps_thc._scheme.compressor import Compressor
from byteps_thc._scheme.config import ResolvedConfig, ThcConfig

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc._scheme.gpu import GpuCompressor

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Kernels:
    """device: where the kernels work, and residuals are; on `stream`."""

    compressor: PartitionCompressor
    device: torch.device
    stream: SideStream

    @property
    def host_zeros(self) -> HostZeros:
        """What makes the arrays that codes and sums travel in."""
        return pinned_zeros(self.device)

    def staging(self, gradient: Tensor, recorder: TrafficRecorder) -> Staging | None:
        """Return what brings gradients like this one to the kernels; None: they are there. recorder: counts copies."""
        if isinstance(self.compressor, Compressor):
            return make_staging(gradient, recorder)
        return make_device_staging(gradient, self.stream, recorder)

    def sum_here(self, exact: ExactSum, recorder: TrafficRecorder) -> ExactSum:
        """Return a sum of float32 tensors where the kernels work, made of one of host tensors."""
        return exact if isinstance(self.compressor, Compressor) else StagedSum(exact, recorder)


def open_kernels(
    device: torch.device | None,
    config: ThcConfig | ResolvedConfig,
    *,
    workers: int,
    worker: int,
    threads: int,
    recorder: TrafficRecorder,
) -> Kernels:
    """Return those of a device, None for host memory; raises what Compressor and GpuCompressor raise."""
    if device is None:
        return Kernels(Compressor(config, workers=workers, worker=worker, threads=threads), _CPU, SideStream(_CPU))
    return device_kernels(open_gpu_compressor(device, config, workers=workers, worker=worker), recorder)


def device_kernels(compressor: GpuCompressor, recorder: TrafficRecorder) -> Kernels:
    """Return those of gpu/, for engines whose codes travel through host memory, and which have the recorder, too."""
    stream = SideStream(compressor.device)
    return Kernels(StagedCompressor(compressor, stream, recorder), compressor.device, stream)


def open_gpu_compressor(
    device: torch.device, config: ThcConfig | ResolvedConfig, *, workers: int, worker: int
) -> GpuCompressor:
    """Return a GpuCompressor, whose module needs Triton."""
    from byteps_thc._scheme.gpu import GpuCompressor

    return GpuCompressor(config, workers=workers, worker=worker, device=device)
