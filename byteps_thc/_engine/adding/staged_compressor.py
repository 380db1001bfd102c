"""The GPU kernels for pieces whose codes travel through pinned host memory: to servers and switches."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from byteps_thc._base.arrays import F32, U8, U16
from byteps_thc._base.wire.layout import MIN_CODES_PER_PACKET
from byteps_thc._engine.staging import SideStream, pinned_zeros
from byteps_thc._net.transport import TrafficRecorder
from byteps_thc._scheme.adding.compressor import LARGEST_NORM
from byteps_thc._scheme.block_plan import WHOLE, BlockPlan

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc._scheme.adding.gpu import DevicePartition, GpuCompressor


class StagedPartition:
    """A compressor.Partition. norms: float32[B], codes: uint8; the caller's host memory. there: on the device."""

    def __init__(self, name: str, there: "DevicePartition", norms: F32, codes: U8) -> None:
        self.name, self.there = name, there
        self.coordinates: int = there.coordinates
        self.residual: Tensor | None = there.residual
        self.norms, self.codes = norms, codes
        self.max_norms: F32 = np.zeros_like(norms)
        self.gradient: Tensor | None = None  # from measure() to encode()
        self.clamped = 0
        self.residual_kept = False
        device = there.norms.device
        #: pinned companions of codes and sums: norms, later their maxima; clamped coordinates; energy
        self.pinned_norms = torch.from_numpy(pinned_zeros(device)(len(norms), np.float32))
        self.pinned_clamped = torch.from_numpy(pinned_zeros(device)(1, np.int64))
        self.pinned_energy = torch.from_numpy(pinned_zeros(device)(1, np.float64))

    @property
    def energy(self) -> float:
        """Return the energy of the last encode()."""
        return float(self.pinned_energy[0])


class StagedCompressor:
    """GpuCompressor with the methods of Compressor.

    Calls for one partition must come in order; partitions may have different threads. decode() may still run after its
    return: its arrays are free when the next encode() of the partition returns. Gradients, residuals and averages are
    on the device. Codes and sums should be in pinned host memory (pinned_zeros), which is copied faster. stream: the
    current one in all calls. recorder: counts copied bytes.
    """

    def __init__(self, compressor: "GpuCompressor", stream: SideStream, recorder: TrafficRecorder) -> None:
        self._compressor, self._stream, self._recorder = compressor, stream, recorder
        self._device = compressor.device
        self.resolved, self.sizes = compressor.resolved, compressor.sizes
        self.workers, self.worker = compressor.workers, compressor.worker

    def partition(
        self, name: str, coordinates: int, *, plan: BlockPlan = WHOLE, residual: Tensor | None, norms: F32, codes: U8
    ) -> StagedPartition:
        """Return a new partition. residual: [coordinates], on the device."""
        there = self._compressor.partition(name, coordinates, residual, plan)
        return StagedPartition(name, there, norms, codes)

    def measure(self, partition: StagedPartition, gradient: Tensor, *, round: int) -> F32:
        """Begin a round; wait for the gradient and its norms."""
        there = partition.there
        partition.gradient = gradient
        there.begin(round)
        there.measure(gradient)
        partition.pinned_norms.copy_(there.norms, non_blocking=True)
        self._stream.wait()
        partition.norms[:] = partition.pinned_norms.numpy()
        self._recorder.add(to_host_bytes=partition.norms.nbytes)
        return partition.norms

    def encode(self, partition: StagedPartition, max_norms: F32) -> U8:
        """Write codes and residual; wait for the codes."""
        there = partition.there
        partition.max_norms[:] = max_norms
        partition.pinned_norms.numpy()[:] = max_norms  # the copy of measure() is over
        there.max_norms.copy_(partition.pinned_norms, non_blocking=True)
        codes = torch.empty(len(partition.codes), dtype=torch.uint8, device=self._device)
        assert partition.gradient is not None, "encode() follows measure()"
        there.encode(partition.gradient, codes)
        partition.gradient = None
        torch.from_numpy(partition.codes).copy_(codes, non_blocking=True)
        partition.pinned_clamped.copy_(there.clamped, non_blocking=True)
        partition.pinned_energy.copy_(there.energy, non_blocking=True)
        self._stream.wait()
        partition.clamped = int(partition.pinned_clamped[0])
        # The same decision as the kernel's (_scheme/adding/gpu/encode.py).
        finite = all(bool((norms <= LARGEST_NORM).all()) for norms in (partition.norms, max_norms))
        partition.residual_kept = partition.residual is not None and finite
        self._recorder.add(
            to_host_bytes=partition.codes.nbytes + partition.pinned_clamped.nbytes + partition.pinned_energy.nbytes,
            to_device_bytes=max_norms.nbytes,
        )
        return partition.codes

    def decode(
        self,
        partition: StagedPartition,
        aggregate: U8 | U16,
        contributions: U8 | U16,
        out: Tensor,
        *,
        codes_per_chunk: int | None = None,
    ) -> None:
        """Start writing the average to `out`, on the device; wait for nothing."""
        complete = bool((contributions == self.workers).all())
        partition.there.decode(
            self._upload(aggregate),
            out,
            contributions=None if complete else self._upload(contributions),
            codes_per_chunk=codes_per_chunk or max(len(aggregate), MIN_CODES_PER_PACKET),
        )

    def _upload(self, array: U8 | U16) -> Tensor:
        self._recorder.add(to_device_bytes=array.nbytes)
        return torch.from_numpy(array).to(self._device, non_blocking=True)
