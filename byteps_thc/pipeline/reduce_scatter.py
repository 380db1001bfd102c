"""THC for sharded gradients: every rank gets the average of its own row of a ShardMatrix.

Each rank needs the average of its own row alone, so no sums are gathered: a coordinate costs half a byte at 4 bits,
where a reduce-scatter of bf16 moves two. Rotation blocks stay inside a row. Rows are cut into pieces of columns
(piece.py), so that norms and codes of some pieces travel while others are encoded and decoded.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from byteps_thc.arrays import gradient_view
from byteps_thc.compressor import Compressor
from byteps_thc.config import ThcConfig
from byteps_thc.errors import InputError, ThcError, TransportError
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.partitioning import column_spans
from byteps_thc.pipeline.piece import Passage, Piece, PieceTools, run_in_turn
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.shard_matrix import ExactColumns, ShardMatrix
from byteps_thc.pipeline.statistics import CompressionStats
from byteps_thc.pipeline.work_clock import WorkClock
from byteps_thc.transport.groups import open_communicator
from byteps_thc.transport.handshake import all_have_same, ranks_on_this_host, require_same_settings, require_same_table
from byteps_thc.transport.ranks import Collectives, ScatterTransport
from byteps_thc.transport.transport import Transfer

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


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
        self._communicator = open_communicator(process_group, policy.deadline_s)
        settings = {"engine": "reduce-scatter"} | config.model_dump() | policy.shared_settings()
        require_same_settings(self._communicator, self.workers, settings)
        resolved = config.resolve(self.workers)  # on all ranks or none
        require_same_table(self._communicator, resolved)
        threads = policy.thread_count(ranks_on_this_host(self._communicator, self.workers))
        compressor = Compressor(resolved, workers=self.workers, worker=self.worker, threads=threads)
        self._state = EngineState(self.worker, self.workers, config.model_dump(), wrap=torch.from_numpy)
        self._recorder = self._state.recorder
        # One thread starts all collectives.
        collectives = Collectives(self._communicator, self._communicator, self._communicator)
        self._tools = PieceTools(
            compressor,
            ScatterTransport(resolved, collectives, self._recorder, compressor.pool),
            self._recorder,
            WorkClock(),
            self._state.rollback,
        )
        self._free: defaultdict[int, list[Transfer]] = defaultdict(list)  # by columns: groups share their memory
        self._error: ThcError | None = None

    @property
    def compressing(self) -> bool:
        """Whether the policy compresses gradients of the current step."""
        return self.policy.compresses(self._state.step)

    def start_step(self) -> None:
        """Begin an optimizer step; called once, before its first gradient."""
        self._state.start_step()

    def require_same(self, gradient: str) -> None:
        """Raise InputError on all ranks unless this gradient is the next one on all of them; gradient: describes it.

        Otherwise ranks would wait for one another until the deadline, or sum gradients of different parameters. Raises
        TransportError and DeadlineError.
        """
        if not all_have_same(self._communicator, zlib.crc32(gradient.encode())):
            raise InputError(f"ranks reduce different gradients; here it is that of {gradient}")

    def reduce_scatter(self, matrix: ShardMatrix, gradient: Tensor, output: Tensor) -> None:
        """Write the average over the ranks of row `worker` to `output`.

        gradient: [matrix.size], output: [matrix.columns]; float32, float16 or bfloat16, contiguous, CPU, or CUDA, which
        is staged through the host. The gradient is used as scratch. A rotation block with a gradient that is not finite
        on any rank becomes NaN. Raises InputError for other tensors, TransportError and DeadlineError.
        """
        if self._error is not None:
            raise TransportError(f"the engine has ended: {self._error}") from self._error
        if matrix.rows != self.workers or gradient.numel() != matrix.size or output.numel() != matrix.columns:
            raise InputError(
                f"matrix {matrix.key!r} of {matrix.rows} x {matrix.columns} does not fit {self.workers} ranks, "
                f"a gradient of {gradient.numel()} and an output of {output.numel()} elements"
            )
        for tensor in (gradient, output):
            if tensor.dtype not in _DTYPES or not tensor.is_contiguous():
                raise InputError(f"gradient is {tensor.dtype}; float32, float16 or bfloat16, contiguous, is needed")
        try:
            staged = torch.empty_like(output, device="cpu") if output.is_cuda else output
            self._reduce(matrix, gradient.cpu(), staged)
            if staged is not output:
                output.copy_(staged)
        except ThcError as error:
            self._error = error
            raise

    def protect_step(self) -> None:
        """Begin a step that may be skipped; see Engine.protect_step().

        Averages of other ranks' rows that leave the range of float16 go unnoticed here: see restore_residuals().
        """
        self._state.rollback.begin()

    def restore_residuals(self) -> None:
        """Bring the residuals back to what they were at protect_step(): the step was skipped."""
        self._state.rollback.restore()

    def scale_residuals(self, factor: float) -> None:
        """Multiply all residuals: gradients come in another unit from now on (GradScaler changed its scale)."""
        self._state.scale(factor)

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's checkpoint needs, copied; call it between steps. As Engine.state_dict()."""
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state_dict() of the same rank and settings; ConfigurationError when it does not fit."""
        self._state.load_state_dict(state)

    def statistics(self) -> CompressionStats:
        """Return what compression did and what it cost. Once a step, that takes a pass over the residuals."""
        return self._state.statistics()

    def count_uncompressed(self, elements: int, element_bytes: int) -> None:
        """Count a gradient that was reduced without this engine."""
        self._recorder.add_gradient(uncompressed=elements)
        self._count_traffic(elements * element_bytes)

    def close(self) -> None:
        """Let later calls fail. May be called again."""
        self._error = self._error or TransportError("the engine was closed")

    def _reduce(self, matrix: ShardMatrix, gradient: Tensor, output: Tensor) -> None:
        exact = ExactColumns(matrix, gradient)
        exact_sum = self._communicator.sum_(exact.sums) if matrix.exact else None
        for gap in matrix.gaps:
            gradient[gap] = 0
        residual = None
        if self.config.error_feedback:
            residual = torch.from_numpy(self._state.residuals.of(matrix.key, matrix.size, matrix.compressed))
        run_in_turn(self._tools, self._passages(matrix, gradient, residual, output), self._state.next_round())
        if residual is not None:
            for gap in matrix.gaps:
                residual[gap] = 0  # what quantization made of padding is no gradient
        if exact_sum is not None:
            exact_sum.wait()
            if not exact.sums.isfinite().all():
                self._state.rollback.request()
            exact.write_average(output, self.worker, self.workers)
        self._recorder.add_gradient(
            compressed=sum(part.size for part in matrix.compressed), uncompressed=exact.sums.numel()
        )
        self._count_traffic(2 * exact.sums.nbytes)

    def _passages(
        self, matrix: ShardMatrix, gradient: Tensor, residual: Tensor | None, output: Tensor
    ) -> Iterator[Passage]:
        shape = (matrix.rows, matrix.columns)
        rows, out = gradient_view(gradient).reshape(shape), gradient_view(output)
        kept = None if residual is None else residual.numpy().reshape(shape)
        for span in column_spans(*shape, self.config):
            columns = span.stop - span.start
            free = self._free[columns]
            transfer = free.pop() if free else self._new_transfer(columns)
            piece = Piece(
                self._tools,
                transfer,
                [f"{matrix.key}[{row},{span.start}:{span.stop}]" for row in range(matrix.rows)],
                columns,
                None if kept is None else list(kept[:, span]),
                decoded=self.worker,
            )
            yield Passage(piece, list(rows[:, span]), out[span], done=partial(free.append, transfer))

    def _new_transfer(self, columns: int) -> Transfer:
        return self._tools.transport.new_transfer(f"{columns} columns", *self._tools.compressor.sizes(columns))

    def _count_traffic(self, volume_bytes: int) -> None:
        self._recorder.add_collective(volume_bytes, self.workers)
