"""THC for sharded gradients: every rank gets the average of its own row of a ShardMatrix.

Each rank needs the average of its own row alone, so no sums are gathered: a coordinate costs half a byte at 4 bits,
where a reduce-scatter of bf16 moves two. Rotation blocks stay inside a row. Rows are cut into pieces of columns
(piece.py), and a thread for each stage takes piece after piece, gradient after gradient, through

    measure -> [norms travel] -> encode -> [codes travel] -> sum and decode
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from byteps_thc.arrays import gradient_view
from byteps_thc.compressor import Compressor
from byteps_thc.config import ResolvedConfig
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.partitioning import column_spans
from byteps_thc.pipeline.piece import Piece, PieceTools
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.rollback import Rollback
from byteps_thc.pipeline.row_engine import RowEngine, RowReduction
from byteps_thc.pipeline.shard_matrix import ShardMatrix
from byteps_thc.pipeline.statistics import StatsRecorder
from byteps_thc.pipeline.work_clock import WorkClock
from byteps_thc.transport.communicator import Communicator
from byteps_thc.transport.groups import open_communicator
from byteps_thc.transport.handshake import ranks_on_this_host
from byteps_thc.transport.ranks import Collectives, ScatterTransport
from byteps_thc.transport.transport import Transfer


@dataclass(frozen=True)
class _Task:
    """A piece of a gradient, and the columns that it compresses. last: of its gradient."""

    reduction: RowReduction
    piece: Piece
    transfer: Transfer
    columns: slice
    last: bool


class ThcReduceScatter(RowEngine):
    """The RowEngine of THC; factory.py makes it. communicator: of host tensors; nobody else's."""

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        resolved: ResolvedConfig,
        policy: CompressionPolicy,
        communicator: Communicator,
    ) -> None:
        workers, worker = process_group.size(), process_group.rank()
        self.config, self.policy = resolved.config, policy
        self._tools = self._make_tools(process_group, resolved, communicator)
        self._free: defaultdict[int, list[Transfer]] = defaultdict(list)  # by columns: groups share their memory
        super().__init__(
            policy,
            communicator,
            EngineState(
                worker,
                workers,
                self.config.model_dump(),
                wrap=torch.from_numpy,
                recorder=self._tools.recorder,
                rollback=self._tools.rollback,
            ),
            ("thc-measure", self._measure),
            [("thc-encode", self._encode), ("thc-decode", self._decode)],
            self._tools.clock,
        )

    @override
    def _residual_of(self, matrix: ShardMatrix) -> Tensor | None:
        if not self.config.error_feedback:
            return None
        return torch.from_numpy(self._state.residuals.of(matrix.key, matrix.size, matrix.compressed))

    def _measure(self, reduction: RowReduction) -> Iterator[_Task]:
        """Start what travels exactly, and send the norms of the pieces."""
        matrix = reduction.matrix
        self._start_exact(reduction)
        for gap in matrix.gaps:
            reduction.source[gap] = 0
        for task in self._tasks(reduction):
            rows = gradient_view(reduction.source).reshape(matrix.rows, matrix.columns)
            task.piece.measure(list(rows[:, task.columns]), reduction.round)
            del rows  # the next stage lets go of the gradient
            yield task

    def _encode(self, task: _Task) -> Iterator[_Task]:
        """Send the codes; with the last piece the gradient's memory is free."""
        task.piece.encode()
        if task.last:
            reduction = task.reduction
            if reduction.residual is not None:
                for gap in reduction.matrix.gaps:
                    reduction.residual[gap] = 0  # what quantization made of padding is no gradient
            reduction.release_source()
        yield task

    def _decode(self, task: _Task) -> Iterator[None]:
        """Sum the own row and write its average; with the last piece, put back what travelled exactly."""
        reduction = task.reduction
        task.piece.sum()
        task.piece.decode(gradient_view(reduction.gradient)[task.columns])
        self._free[task.columns.stop - task.columns.start].append(task.transfer)
        if task.last:
            self._finish_exact(reduction)
            self._recorder.add_gradient(compressed=sum(part.size for part in reduction.matrix.compressed))
            self._finish(reduction)
        return iter(())

    def _tasks(self, reduction: RowReduction) -> Iterator[_Task]:
        """Give the pieces of a gradient, made when asked for: later ones use the memory of those that are done."""
        matrix, kept = reduction.matrix, None
        if reduction.residual is not None:
            kept = reduction.residual.numpy().reshape(matrix.rows, matrix.columns)
        for span in column_spans(matrix.rows, matrix.columns, self.config):
            columns = span.stop - span.start
            free = self._free[columns]
            transfer = free.pop() if free else self._tools.new_transfer(f"{columns} columns", self.workers, columns)
            piece = Piece(
                self._tools,
                transfer,
                [f"{matrix.key}[{row},{span.start}:{span.stop}]" for row in range(matrix.rows)],
                columns,
                None if kept is None else list(kept[:, span]),
                label=f"{matrix.key!r} (columns {span.start} to {span.stop} of {matrix.columns})",
                decoded=self.worker,
            )
            yield _Task(reduction, piece, transfer, span, last=span.stop == matrix.columns)

    def _make_tools(
        self, process_group: dist.ProcessGroup, resolved: ResolvedConfig, communicator: Communicator
    ) -> PieceTools:
        workers = process_group.size()
        threads = self.policy.thread_count(ranks_on_this_host(communicator, workers))
        compressor = Compressor(resolved, workers=workers, worker=process_group.rank(), threads=threads)
        # One per stage: the operations of a communicator start in the order of its thread, the same on all ranks.
        norms, codes = (open_communicator(process_group, self.policy.deadline_s) for _ in range(2))
        recorder = StatsRecorder()
        transport = ScatterTransport(resolved, Collectives(norms, codes, codes), recorder, compressor.pool)
        return PieceTools(compressor, transport, recorder, WorkClock(), Rollback())
