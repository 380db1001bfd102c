"""A worker's side of THC on a GPU: what byteps_thc.Compressor does, for device tensors and with the same bits.

    partition = compressor.partition("layer1.weight", gradient.numel(), None)
    partition.begin(step)
    partition.measure(gradient)                    # partition.norms; partition.max_norms: their maxima over the workers
    partition.encode(gradient, codes)              # uint8[partition.code_bytes]
    partition.decode(sums, out)                    # sums of all workers' table values

Nothing here waits for the device: all calls are put on the current stream, and what they find out (clamped
coordinates, whether the residual was kept) stays in device memory. Tensors that other streams use, too, are the
caller's to record (Tensor.record_stream). All calls can be captured in a CUDA graph: pass the round as a device tensor.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from byteps_thc.arrays import everybody, indexed_device, residual_torch_dtype
from byteps_thc.block_plan import WHOLE, BlockPlan
from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.gpu import kernels
from byteps_thc.gpu.frontend import INTERPRETED
from byteps_thc.gpu.partition import DevicePartition
from byteps_thc.rounding import Rounding
from byteps_thc.row_scales import PartitionSizes
from byteps_thc.tables.device import DeviceTable


class GpuCompressor:
    """Compresses one worker's gradients on `device`, and decodes the averages.

    device: a GPU, which must be the current one when methods are called; for tests, the CPU with TRITON_INTERPRET=1.
    config, workers, worker: see byteps_thc.Compressor. Raises ConfigurationError for settings that cannot work, among
    them rotation blocks above 16384.
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
            raise ConfigurationError(f"settings were resolved for {self.resolved.workers} workers, not {workers}")
        self.config = self.resolved.config
        kernels.check_rotation_block(self.config.rotation_block)
        device = torch.device(device)
        if device.type == "cpu" and not INTERPRETED:
            raise ConfigurationError("GpuCompressor needs a GPU: use byteps_thc.Compressor for gradients on the CPU")
        #: with an index: engines ask whether a gradient is there
        self.device = indexed_device(device)
        self.residual_dtype = residual_torch_dtype(self.config.residual_dtype)
        self.table = DeviceTable.of(self.resolved.table, self.device)
        self.decode_threshold = float(np.float32(self.resolved.decode_threshold))
        self.partition_sizes = PartitionSizes(self.resolved)
        self.workers = workers
        self.worker = worker
        self.rounding = Rounding.of(self.config.rounding, worker, workers)
        #: arrays.everybody() on the device
        self.everybody = torch.from_numpy(everybody(workers)).to(self.device)

    def sizes(self, coordinates: int, plan: BlockPlan = WHOLE) -> tuple[int, int]:
        """Return (norms, padded coordinates) of a partition: sizes of its norms and of its aggregate.

        plan: see byteps_thc.Compressor.partition().
        """
        return self.partition_sizes.of(coordinates, plan)

    def partition(
        self, name: str, coordinates: int, residual: Tensor | None, plan: BlockPlan = WHOLE
    ) -> DevicePartition:
        """Return a new partition.

        name: the same on all workers. residual: float32 or bfloat16[coordinates] as ThcConfig.residual_dtype says,
        what was lost before, read and written in place; None: zeros, with error feedback. plan: of the blocks.
        """
        if residual is not None and not self.resolved.error_feedback:
            raise ConfigurationError("a residual is of no use without error feedback: pass None")
        if residual is None and self.resolved.error_feedback:
            residual = torch.zeros(coordinates, dtype=self.residual_dtype, device=self.device)
        return DevicePartition(self, name, coordinates, residual, plan)
