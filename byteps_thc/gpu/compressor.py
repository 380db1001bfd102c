"""A worker's side of THC on a GPU: byteps_thc.Compressor for device tensors, with the same bits.

    partition = compressor.partition("layer1.weight", gradient.numel())
    compressor.measure(partition, gradient, round=step)    # partition.norms
    compressor.encode(partition, max_norms)                # after the maximum over the workers; partition.codes
    compressor.decode(partition, sums, contributions, out)

Nothing here waits for the device: all calls are put on the current stream, and what they find out (clamped
coordinates, whether the residual was kept) stays in device memory. Tensors that other streams use, too, are the
caller's to record (Tensor.record_stream). All calls can be captured in a CUDA graph: pass `round` as a device tensor.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from byteps_thc import _core
from byteps_thc.arrays import everybody
from byteps_thc.compressor import LARGEST_NORM
from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.errors import ConfigurationError, InputError
from byteps_thc.gpu import kernels
from byteps_thc.gpu.batch import DeviceBatch
from byteps_thc.gpu.frontend import INTERPRETED
from byteps_thc.keys import device_key, set_round
from byteps_thc.rounding import Rounding
from byteps_thc.tables.device import DeviceTable
from byteps_thc.wire.layout import MIN_CODES_PER_PACKET

_GRADIENTS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class DevicePartition:
    """Buffers of one partition in device memory; made by GpuCompressor.partition and used again every round.

    residual: float32[coordinates], what was lost so far; None without error feedback. norms, max_norms: float32[B].
    codes: uint8, packed codes of `padded` coordinates. key: keys.device_key. keep: int32[1], whether the last encode
    wrote the residual. clamped: int64[1], coordinates beyond the clamp in it. energy: float64[1], squared norm of what
    it encoded. ranges: float32[B, 4], see encode.ranges_kernel.
    """

    name: str
    coordinates: int
    padded: int
    residual: Tensor | None
    norms: Tensor
    max_norms: Tensor
    codes: Tensor
    key: Tensor
    ranges: Tensor
    keep: Tensor
    clamped: Tensor
    energy: Tensor
    gradient: Tensor | None = None


class GpuCompressor:
    """Compresses one worker's gradients on `device`, and decodes the averages.

    device: a GPU, which must be the current one when methods are called; for tests, the CPU with TRITON_INTERPRET=1.
    config, workers, worker: see byteps_thc.Compressor. Raises ConfigurationError for settings that cannot work, among
    them rotation blocks above 16384 and codes of 5 and 6 bits.
    """

    def __init__(
        self,
        config: ThcConfig | ResolvedConfig,
        *,
        workers: int,
        worker: int,
        device: torch.device | str = "cuda",
    ) -> None:
        if not 0 <= worker < workers:
            raise ConfigurationError(f"worker must be in 0 .. {workers - 1}, not {worker}")
        self.resolved = config if isinstance(config, ResolvedConfig) else config.resolve(workers)
        if self.resolved.workers != workers:
            raise ConfigurationError(f"settings for {self.resolved.workers} workers do not do for {workers}")
        self.config = self.resolved.config
        kernels.check_rotation_block(self.config.rotation_block)
        kernels.check_bits(self.config.bits)
        self.device = torch.device(device)
        if self.device.type == "cpu" and not INTERPRETED:
            raise ConfigurationError("GpuCompressor needs a GPU: use byteps_thc.Compressor for gradients on the CPU")
        self.table = DeviceTable.of(self.resolved.table, self.device)
        self.workers = workers
        self.worker = worker
        self.rounding = Rounding.of(self.config.rounding, worker, workers)
        #: arrays.everybody() on the device
        self.everybody = torch.from_numpy(everybody(workers)).to(self.device)

    def sizes(self, coordinates: int) -> tuple[int, int]:
        """Return (rotation blocks, padded coordinates) of a partition: sizes of its norms and of its aggregate."""
        block = self.config.rotation_block
        return len(_core.block_sizes(coordinates, block)), _core.padded_size(coordinates, block)

    def partition(
        self,
        name: str,
        coordinates: int,
        *,
        tensor: int | None = None,
        residual: Tensor | None = None,
    ) -> DevicePartition:
        """Return a new partition.

        tensor: 32-bit key of the random signs; None: made of the name. residual: float32[coordinates], what was lost
        before, read and written in place; None: zeros.
        """
        blocks, padded = self.sizes(coordinates)
        if residual is not None and not self.config.error_feedback:
            raise ConfigurationError("a residual is of no use without error feedback")
        if residual is None and self.config.error_feedback:
            residual = torch.zeros(coordinates, device=self.device)
        if residual is not None:
            self._check("residual", residual, (torch.float32,), coordinates)
        key = zlib.crc32(name.encode()) if tensor is None else tensor

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        return DevicePartition(
            name,
            coordinates,
            padded,
            residual,
            norms=zeros(blocks),
            max_norms=zeros(blocks),
            codes=zeros(_core.code_bytes(padded, self.config.bits), dtype=torch.uint8),
            key=device_key(self.device, seed=self.config.seed, tensor=key, rounding=self.rounding),
            ranges=zeros(blocks, 4),
            keep=zeros(1, dtype=torch.int32),
            clamped=zeros(1, dtype=torch.int64),
            energy=zeros(1, dtype=torch.float64),
        )

    def batch(self, named: Sequence[tuple[str, slice]], residual: Tensor | None) -> DeviceBatch:
        """Return the partitions of a buffer, by name, which go through rounds together. residual: see partition()."""
        if residual is None and self.config.error_feedback:
            residual = torch.zeros(named[-1][1].stop, device=self.device)
        return DeviceBatch(self, named, residual)

    def measure(self, partition: DevicePartition, gradient: Tensor, *, round: int | Tensor) -> Tensor:
        """Begin a round: return the norms of gradient + residual, float32[B].

        gradient: contiguous, float32, float16 or bfloat16[coordinates], not to be changed until encode(). round: the
        same on all workers, never twice for a partition; 32 bits, or int32[1] on the device.
        """
        self._check("gradient", gradient, _GRADIENTS, partition.coordinates)
        set_round(partition.key, round)
        kernels.block_norms(gradient, partition.residual, partition.norms, rotation_block=self.config.rotation_block)
        partition.gradient = gradient
        return partition.norms

    def encode(self, partition: DevicePartition, max_norms: Tensor) -> Tensor:
        """Rotate, quantize and pack the gradient that was measured, keep its residual, and return partition.codes.

        max_norms: float32[B]. A gradient that is not finite, here or on another worker, leaves the residual as it was.
        """
        if partition.gradient is None:
            raise InputError(f"partition {partition.name!r} has no gradient: call measure, encode, decode in order")
        self._check("max_norms", max_norms, (torch.float32,), len(partition.norms))
        self._check("codes", partition.codes, (torch.uint8,), _core.code_bytes(partition.padded, self.config.bits))
        if max_norms is not partition.max_norms:
            partition.max_norms.copy_(max_norms)
        kernels.clamp_ranges(
            partition.norms, partition.max_norms, partition.ranges, partition.keep, partition.clamped,
            partition.energy, table=self.table, largest_norm=LARGEST_NORM,
        )  # fmt: skip
        kernels.encode(
            partition.gradient, partition.residual, partition.ranges, partition.codes, partition.keep,
            partition.clamped, rotation_block=self.config.rotation_block, table=self.table, key=partition.key,
            keep_error=partition.residual is not None,
        )  # fmt: skip
        partition.gradient = None
        return partition.codes

    def lookup_sum(self, codes: Tensor, sums: Tensor) -> None:
        """sums[count] = sums of table values; codes: uint8[shards, bytes], of each worker. See kernels.lookup_sum."""
        kernels.lookup_sum(codes, sums, table=self.table)

    def pack_sums(self, sums: Tensor, packed: Tensor) -> None:
        """packed = sums as a stream of sum_bits each; see kernels.pack."""
        kernels.pack(sums, packed, bits=self.resolved.sum_bits)

    def decode(
        self,
        partition: DevicePartition,
        aggregate: Tensor,
        contributions: Tensor | None,
        out: Tensor,
        *,
        codes_per_chunk: int | None = None,
        sum_bits: int | None = None,
    ) -> None:
        """Write the average gradient to out, float32, float16 or bfloat16[coordinates]; several times, if wanted.

        aggregate: uint8 or uint16 (value_bits) [padded], or a stream of sums of sum_bits bits, uint8. contributions:
        uint8 or uint16, workers in each chunk of codes_per_chunk coordinates (default: one chunk); None: all in all.
        """
        if sum_bits is None:
            dtype = torch.uint8 if self.resolved.value_bits == 8 else torch.uint16
            self._check("aggregate", aggregate, (dtype,), partition.padded)
        else:
            self._check("aggregate", aggregate, (torch.uint8,), partition.padded * sum_bits // 8)
        self._check("out", out, _GRADIENTS, partition.coordinates)
        codes_per_chunk = codes_per_chunk or max(partition.padded, MIN_CODES_PER_PACKET)
        contributions = self.everybody if contributions is None else contributions
        kernels.decode(
            aggregate, contributions, partition.max_norms, out, codes_per_chunk=codes_per_chunk,
            rotation_block=self.config.rotation_block, granularity=self.table.granularity,
            threshold=self.table.threshold, key=partition.key, value_bits=self.resolved.value_bits, sum_bits=sum_bits,
        )  # fmt: skip

    def _check(self, name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], size: int) -> None:
        if tensor.dtype not in dtypes or tensor.numel() != size:
            wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise InputError(f"{name} must be {wanted}[{size}], not {tensor.dtype}{list(tensor.shape)}")
        if tensor.device.type != self.device.type:
            raise InputError(f"{name} is on {tensor.device}, not on {self.device}")
        if not tensor.is_contiguous():
            raise InputError(f"{name} is not contiguous")
