"""THC for sharded gradients: every rank gets the average of its own row of a ShardLayout.

    every row: norms -> [maximum] -> rotate, quantize -> [all-to-all of codes]    own row: lookup_sum -> decode

Each rank needs the average of its own row alone, so no sums are gathered: a coordinate costs half a byte at 4 bits,
where a reduce-scatter of bf16 moves two. Rotation blocks stay inside a row. Rows are cut into pieces of columns, so
that norms and codes of some pieces travel while others are encoded and decoded.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from byteps_thc import _core
from byteps_thc.arrays import gradient_view
from byteps_thc.compressor import LARGEST_NORM
from byteps_thc.config import ThcConfig
from byteps_thc.engines.handshake import require_same_settings, require_same_table
from byteps_thc.engines.lanes import max_volume_bytes, open_lane
from byteps_thc.engines.policy import CompressionPolicy
from byteps_thc.engines.residuals import Residuals
from byteps_thc.engines.shard_pieces import ExactColumns, PieceBuffers, ShardPiece
from byteps_thc.engines.shards import ShardLayout
from byteps_thc.engines.state import require_fitting_state
from byteps_thc.engines.step_backup import StepBackup
from byteps_thc.errors import InputError, ThcError, TransportError
from byteps_thc.statistics import CompressionStats, StatsRecorder

_STATE_VERSION = 1
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
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
        self._lane = open_lane(process_group, policy.deadline_s)
        settings = {"engine": "reduce-scatter"} | config.model_dump() | policy.model_dump()
        require_same_settings(self._lane, self.workers, settings)
        self._resolved = config.resolve(self.workers)  # on all ranks or none
        require_same_table(self._lane, self._resolved)
        self._residuals = Residuals()
        self._backup = StepBackup()
        self._free: dict[int, list[PieceBuffers]] = {}
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

    def require_same(self, gradient: str) -> None:
        """Raise InputError on all ranks unless this gradient is the next one on all of them; gradient: describes it.

        Otherwise ranks would wait for one another until the deadline, or sum gradients of different parameters. Raises
        TransportError and DeadlineError.
        """
        fingerprint = zlib.crc32(gradient.encode()) >> 1
        largest = torch.tensor([fingerprint, -fingerprint], dtype=torch.int32)
        self._lane.max_(largest).wait()
        if int(largest[0]) != -int(largest[1]):
            raise InputError(f"ranks reduce different gradients; here it is that of {gradient}")

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
        for tensor in (gradient, output):
            if tensor.dtype not in _DTYPES or not tensor.is_contiguous():
                raise InputError(f"gradient is {tensor.dtype}; float32, float16 or bfloat16, contiguous, is needed")
        try:
            staged = torch.empty_like(output, device="cpu") if output.is_cuda else output
            self._reduce(layout, gradient.cpu(), staged)
            if staged is not output:
                output.copy_(staged)
        except ThcError as error:
            self._error = error
            raise
        self._round = (self._round + 1) % (1 << 32)

    def protect_step(self) -> None:
        """Begin a step that may be skipped; see Engine.protect_step().

        Averages of other ranks' rows that leave the range of float16 go unnoticed here: see restore_residuals().
        """
        self._backup.begin()

    def restore_residuals(self) -> None:
        """Bring the residuals back to what they were at protect_step(): the step was skipped."""
        self._backup.restore()

    def scale_residuals(self, factor: float) -> None:
        """Multiply all residuals: gradients come in another unit from now on (GradScaler changed its scale)."""
        self._backup.settle()
        self._residuals.scale(factor)

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's checkpoint needs, copied; call it between steps. As Engine.state_dict()."""
        self._backup.restore_if_spoiled()
        counters = {"round": self._round, "step": self._step}
        return self._identity() | counters | {"residuals": self._residuals.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict() of the same rank and settings; ConfigurationError when it does not fit."""
        require_fitting_state(state, self._identity(), ("round", "step"))
        self._residuals.load(state["residuals"])
        self._backup.forget()
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
        exact = ExactColumns(layout, gradient)
        exact_sum = self._lane.sum_(exact.sums) if layout.exact else None
        for gap in layout.gaps:
            gradient[gap] = 0
        residual = None
        if self.config.error_feedback:
            residual = self._residuals.of(layout.key, layout.size, layout.compressed)
        pieces = self._pieces(layout, gradient, residual, output)
        stages = (self._measure, self._encode, self._decode)
        for tick in range(len(pieces) + _LOOKAHEAD * (len(stages) - 1)):
            for number, stage in enumerate(stages):
                if 0 <= (piece := tick - _LOOKAHEAD * number) < len(pieces):
                    stage(pieces[piece])
        if residual is not None:
            for gap in layout.gaps:
                residual[gap] = 0  # what quantization made of padding is no gradient
        if exact_sum is not None:
            exact_sum.wait()
            if not exact.sums.isfinite().all():
                self._backup.spoil()
            exact.write_average(output, self.worker, self.workers)
        self._count_gradient(layout, exact)

    def _pieces(
        self, layout: ShardLayout, gradient: Tensor, residual: Tensor | None, output: Tensor
    ) -> list[ShardPiece]:
        """Cut the columns so that a piece of all rows together is about a partition, in whole rotation blocks."""
        block = self.config.rotation_block
        width = max(self.config.partition_coordinates // layout.rows // block, 1) * block
        rows = gradient_view(gradient).reshape(layout.rows, layout.columns)
        kept = None if residual is None else residual.numpy().reshape(layout.rows, layout.columns)
        out = gradient_view(output)
        pieces = []
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
            pieces.append(ShardPiece(rows[:, part], None if kept is None else kept[:, part], out[part], keys))
        return pieces

    def _measure(self, piece: ShardPiece) -> None:
        """Send the norms of all rows."""
        begin = time.perf_counter()
        free = self._free.setdefault(piece.width, [])
        piece.buffers = buffers = free.pop() if free else PieceBuffers(piece.width, self._resolved)
        block = self.config.rotation_block
        for row in range(self.workers):
            residual = None if piece.residual is None else piece.residual[row]
            _core.block_norms(piece.gradient[row], residual, buffers.norms[row], rotation_block=block)
        buffers.max_norms.begin(buffers.norms)
        self._recorder.add_time(encode_ms=_ms_since(begin))
        piece.work = self._lane.max_(buffers.max_norms.bits)
        self._count_traffic(max_volume_bytes(buffers.norms.nbytes, self.workers))

    def _encode(self, piece: ShardPiece) -> None:
        """Send every row's codes to its rank. Rows with a gradient that is not finite keep their residual."""
        buffers = self._wait(piece)
        begin = time.perf_counter()
        clamped, energy, all_kept = 0, 0.0, True
        max_norms = buffers.max_norms.values
        if not (max_norms <= LARGEST_NORM).all():
            self._backup.spoil()
        if piece.residual is not None:
            self._backup.save(piece.residual)
        for row, key in enumerate(piece.keys):
            norms, maximum = buffers.norms[row], max_norms[row]
            finite = bool((norms <= LARGEST_NORM).all() and (maximum <= LARGEST_NORM).all())
            keep = finite and piece.residual is not None
            clamped += _core.encode(
                piece.gradient[row],
                None if piece.residual is None else piece.residual[row],
                maximum,
                buffers.codes[row],
                rotation_block=self.config.rotation_block,
                values=self._resolved.table.array,
                bits=self.config.bits,
                threshold=self._resolved.table.threshold,
                worker=self.worker,
                keep_error=keep,
                **key,
            )
            all_kept = all_kept and keep
            energy += float(np.dot(norms, norms))
        self._recorder.add_time(encode_ms=_ms_since(begin))
        piece.work = self._lane.all_to_all(buffers.received_codes, buffers.sent_codes)
        self._count_traffic(buffers.sent_codes.numel())
        self._recorder.add_quantization(
            coordinates=piece.width * self.workers,
            clamped=clamped,
            energy=energy,
            lost_energy=0.0 if all_kept else None,
        )

    def _decode(self, piece: ShardPiece) -> None:
        """Sum the own row over the ranks."""
        buffers = self._wait(piece)
        begin = time.perf_counter()
        table = self._resolved.table
        for worker, codes in enumerate(buffers.codes_of_worker):
            _core.lookup_sum(codes, table.array, buffers.aggregate, bits=self.config.bits, add=worker > 0)
        _core.decode(
            buffers.aggregate,
            buffers.contributions,
            buffers.max_norms.values[self.worker],
            piece.output,
            coordinates=piece.width,
            codes_per_chunk=len(buffers.aggregate),
            rotation_block=self.config.rotation_block,
            granularity=table.granularity,
            threshold=table.threshold,
            **piece.keys[self.worker],
        )
        self._free[piece.width].append(buffers)
        self._recorder.add_time(decode_ms=_ms_since(begin))

    def _wait(self, piece: ShardPiece) -> PieceBuffers:
        assert piece.work is not None
        assert piece.buffers is not None
        begin = time.perf_counter()
        piece.work.wait()
        self._recorder.add_time(communicate_ms=_ms_since(begin))
        return piece.buffers

    def _count_traffic(self, volume_bytes: int) -> None:
        self._recorder.add_collective(volume_bytes, self.workers)

    def _count_gradient(self, layout: ShardLayout, exact: ExactColumns) -> None:
        self._recorder.add_gradient(
            compressed=sum(part.size for part in layout.compressed), uncompressed=exact.sums.numel()
        )
        self._count_traffic(2 * exact.sums.nbytes)


def _ms_since(begin_s: float) -> float:
    return (time.perf_counter() - begin_s) * 1e3
