"""THC for sharded gradients: every rank gets the average of its own row of a ShardLayout.

    every row: rotate -> [maximum of norms] -> quantize -> [all-to-all of codes]    own row: lookup_sum -> decode

Each rank needs the average of its own row alone, so no sums are gathered: a coordinate costs half a byte at 4 bits,
where a reduce-scatter of bf16 moves two. Rotation blocks stay inside a row. Rows are cut into pieces of columns, so
that norms and codes of some pieces travel while others are rotated, quantized and decoded.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from byteps_thc import _core
from byteps_thc.arrays import F32, U8, U16, Gradient, gradient_view
from byteps_thc.compressor import LARGEST_NORM
from byteps_thc.config import ThcConfig
from byteps_thc.engines.handshake import require_same_settings
from byteps_thc.engines.lanes import Waitable, open_lane
from byteps_thc.engines.policy import CompressionPolicy
from byteps_thc.engines.residuals import Residuals
from byteps_thc.engines.shards import ShardLayout
from byteps_thc.engines.state import require_fitting_state
from byteps_thc.errors import InputError, ThcError, TransportError
from byteps_thc.statistics import CompressionStats, StatsRecorder

_STATE_VERSION = 1
#: Pieces that a stage is ahead of the next one: as many collectives of a kind are in flight.
_LOOKAHEAD = 2


class ReduceScatterEngine:
    """Averages rows over the ranks of a process group (gloo or NCCL). Not for several threads at a time.

    All ranks of the group must make it, with the same settings (ConfigurationError naming what differs), and reduce the
    same layouts in the same order. An error ends the engine: later calls fail.
    """

    def __init__(self, process_group: dist.ProcessGroup, config: ThcConfig, policy: CompressionPolicy) -> None:
        self.workers = process_group.size()
        self.worker = process_group.rank()
        self.config = config
        self.policy = policy
        self._recorder = StatsRecorder()
        self._resolved = config.resolve(self.workers)
        self._lane = open_lane(process_group, policy.deadline_s)
        settings = {"engine": "reduce-scatter"} | config.model_dump() | policy.model_dump()
        require_same_settings(self._lane, self.workers, settings)
        self._residuals = Residuals()
        self._free: dict[int, list[_PieceBuffers]] = {}
        self._error: ThcError | None = None
        self._step = 0  # optimizer steps begun
        self._measured_step = 0  # of which the recorder has the residuals
        self._round = 0  # gradients reduced: no two have the same random keys

    @property
    def compressing(self) -> bool:
        """Whether the policy compresses gradients of the current step."""
        return self.policy.compresses(max(self._step - 1, 0))

    def start_step(self) -> None:
        """Begin an optimizer step; called once, before its first gradient."""
        self._step += 1
        self._recorder.step_began()

    def reduce_scatter(self, layout: ShardLayout, gradient: Tensor, output: Tensor) -> None:
        """Write the average over the ranks of row `worker` to `output`.

        gradient: [layout.size], output: [layout.columns]; float32, float16 or bfloat16, contiguous, CPU, or CUDA, which
        is staged through the host. The gradient is used as scratch. A rotation block with a gradient that is not finite
        on any rank becomes NaN. Raises InputError for other tensors, TransportError and DeadlineError.
        """
        if self._error is not None:
            raise TransportError(f"the engine has ended: {self._error}") from self._error
        if layout.rows != self.workers or gradient.numel() != layout.size or output.numel() != layout.columns:
            raise InputError(
                f"layout {layout.key!r} of {layout.rows} x {layout.columns} does not fit {self.workers} ranks, "
                f"a gradient of {gradient.numel()} and an output of {output.numel()} elements"
            )
        try:
            staged = torch.empty_like(output, device="cpu") if output.is_cuda else output
            self._reduce(layout, gradient.cpu(), staged)
            if staged is not output:
                output.copy_(staged)
        except ThcError as error:
            self._error = error
            raise
        self._round = (self._round + 1) % (1 << 32)

    def scale_residuals(self, factor: float) -> None:
        """Multiply all residuals: gradients come in another unit from now on (GradScaler changed its scale)."""
        self._residuals.scale(factor)

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's checkpoint needs, copied; call it between steps. As Engine.state_dict()."""
        counters = {"round": self._round, "step": self._step}
        return self._identity() | counters | {"residuals": self._residuals.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict() of the same rank and settings; ConfigurationError when it does not fit."""
        require_fitting_state(state, self._identity(), ("round", "step"))
        self._residuals.load(state["residuals"])
        self._round, self._step = state["round"], state["step"]

    def statistics(self) -> CompressionStats:
        """Return what compression did and what it cost. Once a step, that takes a pass over the residuals."""
        if self._measured_step != self._step:
            self._measured_step = self._step
            self._recorder.add_quantization(coordinates=0, clamped=0, lost_energy=self._residuals.energy())
        return self._recorder.snapshot()

    def count_uncompressed(self, elements: int, element_bytes: int) -> None:
        """Count a gradient that was reduced without this engine."""
        self._recorder.add_gradient(uncompressed=elements)
        self._count_traffic(elements * element_bytes)

    def close(self) -> None:
        """Let later calls fail. May be called again."""
        self._error = self._error or TransportError("the engine was closed")

    def _identity(self) -> dict[str, Any]:
        return {
            "version": _STATE_VERSION,
            "worker": self.worker,
            "workers": self.workers,
            "config": self.config.model_dump(),
        }

    def _reduce(self, layout: ShardLayout, gradient: Tensor, output: Tensor) -> None:
        exact = _ExactColumns(layout, gradient)
        exact_sum = self._lane.sum_(exact.sums) if layout.exact else None
        for gap in layout.gaps:
            gradient[gap] = 0
        residual = None
        if self.config.error_feedback:
            residual = self._residuals.of(layout.key, layout.size, layout.compressed)
        jobs = self._jobs(layout, gradient, residual, output)
        stages = (self._rotate, self._quantize, self._decode)
        for tick in range(len(jobs) + _LOOKAHEAD * (len(stages) - 1)):
            for number, stage in enumerate(stages):
                if 0 <= (piece := tick - _LOOKAHEAD * number) < len(jobs):
                    stage(jobs[piece])
        if residual is not None:
            for gap in layout.gaps:
                residual[gap] = 0  # what quantization made of padding is no gradient
        if exact_sum is not None:
            exact_sum.wait()
            exact.write_average(output, self.worker, self.workers)
        self._count_gradient(layout, exact)

    def _jobs(self, layout: ShardLayout, gradient: Tensor, residual: Tensor | None, output: Tensor) -> list[_Job]:
        """Cut the columns so that a piece of all rows together is about a partition, in whole rotation blocks."""
        block = self.config.rotation_block
        width = max(self.config.partition_coordinates // layout.rows // block, 1) * block
        rows = gradient_view(gradient).reshape(layout.rows, layout.columns)
        kept = None if residual is None else residual.numpy().reshape(layout.rows, layout.columns)
        out = gradient_view(output)
        jobs = []
        for start in range(0, layout.columns, width):
            part = slice(start, min(start + width, layout.columns))
            keys = [
                {
                    "seed": self.config.seed,
                    "tensor": zlib.crc32(f"{layout.key}[{row},{part.start}:{part.stop}]".encode()),
                    "round": self._round,
                }
                for row in range(layout.rows)
            ]
            jobs.append(_Job(rows[:, part], None if kept is None else kept[:, part], out[part], keys))
        return jobs

    def _rotate(self, job: _Job) -> None:
        begin = time.perf_counter()
        free = self._free.setdefault(job.width, [])
        job.buffers = buffers = free.pop() if free else _PieceBuffers(job.width, self._resolved.value_bits, self)
        for row, key in enumerate(job.keys):
            residual = None if job.residual is None else job.residual[row]
            _core.rotate(
                job.gradient[row],
                residual,
                buffers.rotated[row],
                buffers.norms[row],
                rotation_block=self.config.rotation_block,
                **key,
            )
        # As integers: norms order like them, and NaN above infinity, so that NaN reaches all ranks.
        np.bitwise_and(buffers.norms.view(np.int32), 0x7FFFFFFF, out=buffers.max_norm_bits.numpy())
        self._recorder.add_time(encode_ms=_ms_since(begin))
        job.work = self._lane.max_(buffers.max_norm_bits)
        self._count_traffic(2 * buffers.norms.nbytes)  # a ring all-reduce, as gloo and NCCL do it

    def _quantize(self, job: _Job) -> None:
        buffers = self._wait(job)
        begin = time.perf_counter()
        clamped = 0
        for row, key in enumerate(job.keys):
            clamped += _core.quantize(
                buffers.rotated[row],
                buffers.max_norms[row],
                buffers.codes[row],
                coordinates=job.width,
                rotation_block=self.config.rotation_block,
                values=self._resolved.table.array,
                bits=self.config.bits,
                threshold=self._resolved.table.threshold,
                worker=self.worker,
                keep_error=job.residual is not None,
                **key,
            )
        job.work = self._lane.all_to_all(buffers.received_codes, buffers.sent_codes)
        self._count_traffic(buffers.sent_codes.numel())
        self._keep_residuals(job, buffers, clamped)
        self._recorder.add_time(encode_ms=_ms_since(begin))

    def _keep_residuals(self, job: _Job, buffers: _PieceBuffers, clamped: int) -> None:
        """Keep what quantization lost, while the codes travel; rows with a gradient that is not finite keep theirs."""
        energy = 0.0
        all_kept = job.residual is not None
        for row, key in enumerate(job.keys):
            norms, maximum = buffers.norms[row], buffers.max_norms[row]
            finite = bool((norms <= LARGEST_NORM).all() and (maximum <= LARGEST_NORM).all())
            all_kept = all_kept and finite
            if job.residual is None or not finite:
                continue
            residual = job.residual[row]
            _core.inverse_rotate(buffers.rotated[row], residual, rotation_block=self.config.rotation_block, **key)
            energy += float(np.dot(norms, norms))
        self._recorder.add_quantization(
            coordinates=job.width * len(job.keys),
            clamped=clamped,
            energy=energy,
            lost_energy=0.0 if all_kept else None,
        )

    def _decode(self, job: _Job) -> None:
        buffers = self._wait(job)
        begin = time.perf_counter()
        table = self._resolved.table
        for worker, codes in enumerate(buffers.codes_of_worker):
            _core.lookup_sum(codes, table.array, buffers.aggregate, bits=self.config.bits, add=worker > 0)
        _core.decode(
            buffers.aggregate,
            buffers.contributions,
            buffers.max_norms[self.worker],
            job.output,
            coordinates=job.width,
            codes_per_chunk=len(buffers.aggregate),
            rotation_block=self.config.rotation_block,
            granularity=table.granularity,
            threshold=table.threshold,
            **job.keys[self.worker],
        )
        self._free[job.width].append(buffers)
        self._recorder.add_time(decode_ms=_ms_since(begin))

    def _wait(self, job: _Job) -> _PieceBuffers:
        assert job.work is not None
        assert job.buffers is not None
        begin = time.perf_counter()
        job.work.wait()
        self._recorder.add_time(communicate_ms=_ms_since(begin))
        return job.buffers

    def _count_traffic(self, volume_bytes: int) -> None:
        """Count a collective in which every rank sends all but its own part of that volume, and receives as much."""
        moved_bytes = volume_bytes * (self.workers - 1) // self.workers
        self._recorder.add_traffic(sent_bytes=moved_bytes, received_bytes=moved_bytes)

    def _count_gradient(self, layout: ShardLayout, exact: _ExactColumns) -> None:
        self._recorder.add_gradient(
            compressed=sum(part.size for part in layout.compressed), uncompressed=exact.sums.numel()
        )
        self._count_traffic(2 * exact.sums.nbytes)


@dataclass
class _Job:
    """A piece of columns of all rows, on its way. gradient, residual: [rows, width]; output: [width]."""

    gradient: Gradient
    residual: F32 | None
    output: Gradient
    keys: list[dict[str, int]]
    buffers: _PieceBuffers | None = None
    work: Waitable | None = None

    @property
    def width(self) -> int:
        """Columns."""
        return int(self.gradient.shape[1])


class _PieceBuffers:
    """Memory for a piece of that many columns; used again by later pieces and layouts."""

    def __init__(self, width: int, value_bits: int, engine: ReduceScatterEngine) -> None:
        rows, config = engine.workers, engine.config
        padded = _core.padded_size(width, config.rotation_block)
        blocks = len(_core.block_sizes(width, config.rotation_block))
        code_bytes = _core.code_bytes(padded, config.bits)
        self.rotated: F32 = np.zeros((rows, padded), np.float32)
        self.norms: F32 = np.zeros((rows, blocks), np.float32)
        self.max_norm_bits = torch.zeros(rows, blocks, dtype=torch.int32)
        self.sent_codes = torch.zeros(rows * code_bytes, dtype=torch.uint8)
        self.received_codes = torch.zeros(rows * code_bytes, dtype=torch.uint8)
        self.aggregate: U8 | U16 = np.zeros(padded, np.uint8) if value_bits == 8 else np.zeros(padded, np.uint16)
        self.contributions: U8 = np.full(1, engine.workers, np.uint8)
        # The same memory as the kernels take it.
        self.max_norms: F32 = self.max_norm_bits.numpy().view(np.float32)
        self.codes: U8 = self.sent_codes.numpy().reshape(rows, code_bytes)
        self.codes_of_worker: U8 = self.received_codes.numpy().reshape(rows, code_bytes)


class _ExactColumns:
    """Columns that travel uncompressed, side by side in float32. Of a row's average all ranks get to know all."""

    def __init__(self, layout: ShardLayout, gradient: Tensor) -> None:
        self._columns = layout.exact
        rows = gradient.view(layout.rows, layout.columns)
        parts = [rows[:, start:stop].float() for start, stop in layout.exact]
        self.sums = torch.cat(parts, dim=1) if parts else torch.zeros(layout.rows, 0)

    def write_average(self, output: Tensor, worker: int, workers: int) -> None:
        """Write the columns of row `worker` of the sums, divided."""
        averages = torch.split(self.sums[worker] / workers, [stop - start for start, stop in self._columns])
        for (start, stop), average in zip(self._columns, averages, strict=True):
            output[start:stop] = average


def _ms_since(begin_s: float) -> float:
    return (time.perf_counter() - begin_s) * 1e3
