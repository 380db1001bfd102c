"""Compressor with the interface of GpuCompressor, on CPU tensors: the road of devices with servers, without Triton."""

from typing import Any

import torch
from torch import Tensor

import byteps_thc.torch.lanes.engines as lane_engines
from byteps_thc import Compressor
from byteps_thc._base.arrays import everybody, residual_of_tensor
from byteps_thc._engine import door, factory
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.adding.server_codes import ResolvedCodes, ServerCodes
from byteps_thc._scheme.block_plan import WHOLE, BlockPlan


class HostDevicePartition:
    def __init__(
        self, compressor: Compressor, name: str, coordinates: int, residual: Tensor | None, plan: BlockPlan
    ) -> None:
        self._compressor, self.residual = compressor, residual
        self.coordinates = coordinates
        blocks, self.padded = compressor.sizes(coordinates, plan)
        self.norms, self.max_norms = torch.zeros(blocks), torch.zeros(blocks)
        self.clamped = torch.zeros(1, dtype=torch.int64)
        self.energy = torch.zeros(1, dtype=torch.float64)
        self._part = compressor.partition(
            name,
            coordinates,
            plan=plan,
            residual=None if residual is None else residual_of_tensor(residual),
            norms=self.norms.numpy(),
        )
        self._round = 0

    def begin(self, round: int) -> None:
        self._round = round

    def measure(self, gradient: Tensor) -> None:
        self._compressor.measure(self._part, gradient.view(-1), round=self._round)

    def encode(self, gradient: Tensor, codes: Tensor) -> None:
        part = self._part
        assert part.gradient is None or part.gradient.ctypes.data == gradient.data_ptr()
        codes.copy_(torch.from_numpy(self._compressor.encode(part, self.max_norms.numpy())))
        self.clamped[0], self.energy[0] = part.clamped, part.energy

    def decode(
        self, aggregate: Tensor, out: Tensor, *, contributions: Tensor | None = None, codes_per_chunk: int | None = None
    ) -> None:
        assert aggregate.numel() == self.padded
        workers = everybody(self._compressor.workers) if contributions is None else contributions.numpy()
        codes_per_chunk = codes_per_chunk if contributions is not None else None
        self._compressor.decode(self._part, aggregate.numpy(), workers, out, codes_per_chunk=codes_per_chunk)


class HostDeviceCompressor:
    device = torch.device("cpu")

    def __init__(self, resolved: ResolvedCodes, *, workers: int, worker: int) -> None:
        self._compressor = Compressor(resolved, workers=workers, worker=worker, threads=1)
        self.resolved, self.codes = resolved, resolved.codes
        self.workers, self.worker = workers, worker

    def sizes(self, coordinates: int, plan: BlockPlan = WHOLE) -> tuple[int, int]:
        return self._compressor.sizes(coordinates, plan)

    def partition(
        self, name: str, coordinates: int, residual: Tensor | None, plan: BlockPlan = WHOLE
    ) -> HostDevicePartition:
        return HostDevicePartition(self._compressor, name, coordinates, residual, plan)


def take_cpu_for_device(device: torch.device = HostDeviceCompressor.device) -> None:
    """Let engines with servers compress on `device` by this compressor, on CPU tensors, unless kernels="host"."""

    def open_compressor(_: torch.device, codes: ServerCodes | ResolvedCodes, *, workers: int, worker: int) -> Any:
        resolved = codes if isinstance(codes, ResolvedCodes) else codes.resolve(workers)
        compressor = HostDeviceCompressor(resolved, workers=workers, worker=worker)
        compressor.device = device
        return compressor

    def device_of(_group: Any, codes: ServerCodes | None, policy: CompressionPolicy, _gradients_on: Any) -> Any:
        return None if codes is None or policy.kernels == "host" else device

    factory.open_gpu_compressor = open_compressor
    door.device_of = factory.device_of = device_of
    lane_engines.device_of = device_of
