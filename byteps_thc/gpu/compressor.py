"""A worker's side of THC on a GPU: what byteps_thc.Compressor does, for device tensors and with the same bits.

    batch = compressor.batch([("layer1.weight", slice(0, gradient.numel()))], None)
    batch.begin(step)
    batch.measure(gradient)                    # batch.norms; batch.max_norms is for their maximum over the workers
    batch.encode(gradient, codes)              # uint8[batch.code_bytes]
    compressor.lookup_sum(all_codes, sums)     # of all workers
    batch.decode(sums, out)

Nothing here waits for the device: all calls are put on the current stream, and what they find out (clamped
coordinates, whether the residual was kept) stays in device memory. Tensors that other streams use, too, are the
caller's to record (Tensor.record_stream). All calls can be captured in a CUDA graph: pass the round as a device tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from byteps_thc.arrays import everybody, indexed_device, residual_torch_dtype
from byteps_thc.block_plan import WHOLE, BlockPlan
from byteps_thc.compressor import SCALE_GROUP, scale_groups
from byteps_thc.config import ResolvedConfig, ThcConfig
from byteps_thc.device_message import Beside
from byteps_thc.errors import ConfigurationError
from byteps_thc.gpu import kernels
from byteps_thc.gpu.batch import DeviceBatch
from byteps_thc.gpu.frontend import INTERPRETED
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
            raise ConfigurationError(f"settings for {self.resolved.workers} workers do not do for {workers}")
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
        down = self.resolved.down
        #: of requantized sums
        self.down = None if down is None else DeviceTable.of(down, self.device)
        self.partition_sizes = PartitionSizes(self.resolved)
        self.workers = workers
        self.worker = worker
        self.rounding = Rounding.of(self.config.rounding, worker, workers)
        errors = self.resolved.known_errors
        #: KnownErrors on the device, of this worker and of sums; None where nothing is subtracted
        self.known = errors and [torch.tensor(known, device=self.device) for known in errors]
        #: arrays.everybody() on the device
        self.everybody = torch.from_numpy(everybody(workers)).to(self.device)

    def sizes(self, coordinates: int, plan: BlockPlan = WHOLE) -> tuple[int, int]:
        """Return (norms, padded coordinates) of a partition: sizes of its norms and of its aggregate.

        plan: see byteps_thc.Compressor.partition().
        Padded to whole groups where sums are requantized, so that partitions behind each other share none.
        """
        norms, padded = self.partition_sizes.of(coordinates, plan)
        if self.down is not None:
            padded = scale_groups(padded) * SCALE_GROUP
        return norms, padded

    def batch(
        self, named: Sequence[tuple[str, slice]], residual: Tensor | None, plan: BlockPlan = WHOLE
    ) -> DeviceBatch:
        """Return the partitions of a buffer, which go through rounds together.

        named: name and place of each; they follow each other from 0 on, and all but the last have a multiple of 64
        coordinates. A name is that of the same partition on all workers. residual: float32 or bfloat16 as
        ThcConfig.residual_dtype says, of all of them, what was lost before, read and written in place; None: zeros,
        where there is error feedback. plan: of the blocks in the buffer.
        """
        return self.matrix([[name for name, _ in named]], [span for _, span in named], residual, plan)

    def matrix(
        self,
        names: Sequence[Sequence[str]],
        spans: Sequence[slice],
        residual: Tensor | None,
        plan: BlockPlan = WHOLE,
        decoded: int = 0,
        beside: Beside | None = None,
    ) -> DeviceBatch:
        """Return the partitions of rows that are cut alike: of a gradient of len(names) rows, one behind the other.

        names: of each row's partitions. spans, plan: see batch(). residual: of all rows. decoded: the row whose
        average decode() writes. beside: what is not compressed.
        """
        if residual is not None and not self.resolved.error_feedback:
            raise ConfigurationError("a residual is of no use without error feedback")
        if residual is None and self.resolved.error_feedback:
            residual = torch.zeros(len(names) * spans[-1].stop, dtype=self.residual_dtype, device=self.device)
        return DeviceBatch(self, names, spans, residual, plan, decoded, beside)

    def lookup_sum(self, codes: Tensor, sums: Tensor) -> None:
        """sums[count] = sums of table values; codes: uint8[shards, bytes], of each worker. See kernels.lookup_sum."""
        kernels.lookup_sum(codes, sums, table=self.table)

    def pack_sums(self, codes: Tensor, sums: Tensor, packed: Tensor) -> None:  # noqa: ARG002
        """packed = sums of table values as a stream of sum_bits each; see lookup_sum(). sums: of no use here."""
        bits, wide = self.resolved.sum_bits, self.resolved.value_bits == 16
        kernels.lookup_pack(codes, packed, table=self.table, sum_bits=bits, wide=wide)
