"""A worker's side of THC on a GPU, like byteps_thc.Compressor, for device tensors and with the same bits.

    partition = compressor.partition("layer1.weight", gradient.numel(), None)
    partition.begin(step)
    partition.measure(gradient)                    # partition.norms; partition.max_norms: their maxima over the workers
    partition.encode(gradient, codes)              # uint8[partition.code_bytes]
    partition.decode(sums, out)                    # sums of all workers' table values

Nothing here waits for the device: calls go to the current stream, and their results stay in device memory. The caller
records tensors that other streams use, too (Tensor.record_stream).
"""

import numpy as np
import torch
from torch import Tensor

from byteps_thc._base.arrays import everybody, indexed_device, require_tensor
from byteps_thc._base.errors import ConfigurationError, InputError
from byteps_thc._native import _core
from byteps_thc._scheme.adding.gpu import kernels
from byteps_thc._scheme.adding.gpu.row_scales import DeviceRowScales
from byteps_thc._scheme.adding.gpu.tiles import TileTable
from byteps_thc._scheme.adding.row_scales import PartitionSizes
from byteps_thc._scheme.adding.server_codes import ResolvedCodes, ServerCodes, resolved_for
from byteps_thc._scheme.adding.tables.device import DeviceTable
from byteps_thc._scheme.block_plan import WHOLE, BlockPlan
from byteps_thc._scheme.gpu.frontend import INTERPRETED
from byteps_thc._scheme.gpu.layouts import MAX_TILE
from byteps_thc._scheme.keys import device_key, set_round
from byteps_thc._scheme.rounding import Rounding
from byteps_thc._scheme.shares import random_key

_GRADIENTS = (torch.float32, torch.float16, torch.bfloat16)


class GpuCompressor:
    """Compresses one worker's gradients on `device`, and decodes the averages.

    device: a GPU, the current one when methods are called; for tests, the CPU with TRITON_INTERPRET=1. codes, workers,
    worker: as for byteps_thc.Compressor. Raises ConfigurationError for unsupported settings, among them rotation blocks
    above 16384.
    """

    def __init__(
        self, codes: ServerCodes | ResolvedCodes, *, workers: int, worker: int, device: torch.device | str = "cuda"
    ) -> None:
        self.resolved = resolved_for(codes, workers, worker, "GpuCompressor")
        self.codes = self.resolved.codes
        block = self.codes.rotation_block
        if block > MAX_TILE:
            raise ConfigurationError(f"rotation_block {block} is too large for the GPU kernels: use at most {MAX_TILE}")
        device = torch.device(device)
        if device.type == "cpu" and not INTERPRETED:
            raise ConfigurationError("GpuCompressor needs a GPU: use byteps_thc.Compressor for gradients on the CPU")
        #: with an index, to compare with the devices of gradients
        self.device = indexed_device(device)
        self.table = DeviceTable.of(self.resolved.table, self.device)
        self.decode_threshold = float(np.float32(self.resolved.decode_threshold))
        self.partition_sizes = PartitionSizes(self.resolved)
        self.workers, self.worker = workers, worker
        self.rounding = Rounding.of(self.codes.rounding, worker, workers)
        #: arrays.everybody() on the device
        self.everybody = torch.from_numpy(everybody(workers)).to(self.device)

    def sizes(self, coordinates: int, plan: BlockPlan = WHOLE) -> tuple[int, int]:
        """Return (norms, padded coordinates) of a partition: sizes of its norms and of its aggregate."""
        return self.partition_sizes.of(coordinates, plan)

    def partition(
        self, name: str, coordinates: int, residual: Tensor | None, plan: BlockPlan = WHOLE
    ) -> "DevicePartition":
        """Return a new partition.

        name: the same on all workers. residual: float32[coordinates], the previous loss, read and written in place;
        None: zeros, with error feedback. plan: of the blocks.
        """
        if residual is not None and not self.resolved.error_feedback:
            raise ConfigurationError("a residual needs error feedback: pass None, or set error_feedback=True")
        if residual is None and self.resolved.error_feedback:
            residual = torch.zeros(coordinates, device=self.device)
        return DevicePartition(self, name, coordinates, residual, plan)


class DevicePartition:
    """A partition of B rotation blocks; GpuCompressor.partition makes it.

    residual: [coordinates], None without error feedback. norms, max_norms: float32[B + S], of the blocks and of S rows
    with scales. scales: of those rows; None without any. limits: float32[B], the norms that clamp the blocks; valid
    after encode(). keep: int32[1], whether encode() wrote the residual. clamped: int64[1], coordinates beyond the
    clamp. energy: float64[1], squared norm. padded, code_bytes: sizes of the aggregate and of the codes.
    """

    def __init__(
        self, compressor: GpuCompressor, name: str, coordinates: int, residual: Tensor | None, plan: BlockPlan = WHOLE
    ) -> None:
        device, codes = compressor.device, compressor.codes
        self._compressor = compressor
        self.coordinates, self.residual = coordinates, residual
        if residual is not None:
            self._require("residual", residual, (torch.float32,), coordinates)
        sizes = compressor.partition_sizes
        norms, self.padded = sizes.of(coordinates, plan)
        self.code_bytes = _core.code_bytes(self.padded, compressor.table.bits)
        self._blocks = sizes.blocks(coordinates, plan)
        rows = sizes.scaled_rows(coordinates, plan)
        self.scales = None if rows is None else DeviceRowScales(rows, coordinates, device)
        self.norms, self.max_norms = torch.zeros(norms, device=device), torch.zeros(norms, device=device)
        self.limits = self.max_norms
        self.keep = torch.zeros(1, dtype=torch.int32, device=device)
        self.clamped = torch.zeros(1, dtype=torch.int64, device=device)
        self.energy = torch.zeros(1, dtype=torch.float64, device=device)
        self._ranges = torch.zeros(self._blocks, 4, device=device)
        tensor, rounding = random_key(name), compressor.rounding
        self._key = device_key(device, seed=codes.seed, tensor=tensor, rounding=rounding)
        self._tiles = TileTable.of(coordinates, plan.ends, codes.rotation_block, device)

    def begin(self, round: int) -> None:
        """Begin a round: 32 bits, the same on all workers, never twice for a name."""
        set_round(self._key, round)

    def measure(self, gradient: Tensor) -> None:
        """Write the norms of gradient + residual.

        gradient: contiguous, float32, float16 or bfloat16[coordinates], unchanged until encode() is over.
        """
        self._require("gradient", gradient, _GRADIENTS, self.coordinates)
        kernels.block_norms(gradient, self.residual, self.norms, tiles=self._tiles)
        if self.scales is not None:
            self.scales.measure(gradient, self.residual, self.norms)

    def encode(self, gradient: Tensor, codes: Tensor) -> None:
        """Rotate, quantize and pack the measured gradient, and write the residual. Reads max_norms.

        codes: uint8[code_bytes], a stream. A gradient that is not finite, here or on another worker, leaves the
        residual unchanged.
        """
        compressor = self._compressor
        self._require("gradient", gradient, _GRADIENTS, self.coordinates)
        self._require("codes", codes, (torch.uint8,), self.code_bytes)
        scales, carried = self.scales, self.residual
        norms, table = self.norms[: self._blocks], compressor.table
        blocks, found = self.max_norms[: self._blocks], (self.keep, self.clamped, self.energy)
        kernels.clamp_ranges(norms, blocks, self._ranges, *found, table=table)
        if scales is not None:
            self.limits = scales.take(self.max_norms)
            unused = [torch.empty_like(tensor) for tensor in found]
            kernels.clamp_ranges(norms, self.limits, self._ranges, *unused, table=table)
            gradient = scales.scale(gradient, carried)
            carried = None if carried is None else torch.zeros_like(gradient)
        kernels.encode(
            gradient, carried, self._ranges, codes, self.keep, self.clamped,
            table=table, key=self._key, keep_error=carried is not None, tiles=self._tiles,
        )  # fmt: skip
        if scales is not None and carried is not None and self.residual is not None:
            torch.where(self.keep != 0, scales.unscale(carried), self.residual, out=self.residual)

    def decode(
        self, aggregate: Tensor, out: Tensor, *, contributions: Tensor | None = None, codes_per_chunk: int | None = None
    ) -> None:
        """Write the average to out, float32, float16 or bfloat16[coordinates]. Repeated calls are allowed.

        aggregate: uint8 or uint16 (value_bits) [padded], the sums of table values. contributions: uint8 or uint16,
        workers in each chunk of codes_per_chunk coordinates (None: one chunk); None: all workers are in all sums.
        """
        compressor = self._compressor
        numbers = torch.uint8 if compressor.resolved.value_bits == 8 else torch.uint16
        self._require("aggregate", aggregate, (numbers,), self.padded)
        self._require("out", out, _GRADIENTS, self.coordinates)
        average = out if self.scales is None else torch.zeros(out.shape, device=out.device)
        kernels.decode(
            aggregate, compressor.everybody if contributions is None else contributions, self.limits, average,
            codes_per_chunk=codes_per_chunk or self.padded, granularity=compressor.table.granularity,
            threshold=compressor.decode_threshold, key=self._key, tiles=self._tiles,
        )  # fmt: skip
        if self.scales is not None:
            out.copy_(self.scales.unscale(average))

    def _require(self, name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], size: int) -> None:
        require_tensor(name, tensor, dtypes, size)
        if tensor.device.type != self._compressor.device.type:
            raise InputError(f"{name} is on {tensor.device}, not on {self._compressor.device}")
