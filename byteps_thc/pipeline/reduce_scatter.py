"""THC for sharded gradients: every rank gets the average of its own row of a ShardMatrix.

Each rank needs the average of its own row alone, so no sums are gathered: a coordinate costs half a byte at 4 bits,
where a reduce-scatter of bf16 moves two. Rotation blocks stay inside a row. Rows are cut into pieces of columns
(piece.py), so that norms and codes of some pieces travel while others are encoded and decoded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from byteps_thc.arrays import gradient_view
from byteps_thc.compressor import Compressor
from byteps_thc.config import ThcConfig
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.partitioning import column_spans
from byteps_thc.pipeline.piece import Passage, Piece, PieceTools, run_in_turn
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.row_engine import RowEngine
from byteps_thc.pipeline.shard_matrix import ShardMatrix
from byteps_thc.pipeline.work_clock import WorkClock
from byteps_thc.transport.groups import open_communicator
from byteps_thc.transport.handshake import ranks_on_this_host, require_same_settings, require_same_table
from byteps_thc.transport.ranks import Collectives, ScatterTransport
from byteps_thc.transport.transport import Transfer


class ThcReduceScatter(RowEngine):
    """The RowEngine of THC."""

    def __init__(self, process_group: dist.ProcessGroup, config: ThcConfig, policy: CompressionPolicy) -> None:
        workers, worker = process_group.size(), process_group.rank()
        self.config = config
        communicator = open_communicator(process_group, policy.deadline_s)
        settings = {"engine": "reduce-scatter"} | config.model_dump() | policy.shared_settings()
        require_same_settings(communicator, workers, settings)
        resolved = config.resolve(workers)  # on all ranks or none
        require_same_table(communicator, resolved)
        threads = policy.thread_count(ranks_on_this_host(communicator, workers))
        compressor = Compressor(resolved, workers=workers, worker=worker, threads=threads)
        super().__init__(policy, communicator, EngineState(worker, workers, config.model_dump(), wrap=torch.from_numpy))
        # One thread starts all collectives.
        collectives = Collectives(communicator, communicator, communicator)
        self._tools = PieceTools(
            compressor,
            ScatterTransport(resolved, collectives, self._recorder, compressor.pool),
            self._recorder,
            WorkClock(),
            self._state.rollback,
        )
        self._free: defaultdict[int, list[Transfer]] = defaultdict(list)  # by columns: groups share their memory

    @override
    def _reduce(self, matrix: ShardMatrix, gradient: Tensor, output: Tensor) -> None:
        exact, exact_sum = self._start_exact(matrix, gradient)
        for gap in matrix.gaps:
            gradient[gap] = 0
        residual = None
        if self.config.error_feedback:
            residual = torch.from_numpy(self._state.residuals.of(matrix.key, matrix.size, matrix.compressed))
        run_in_turn(self._tools, self._passages(matrix, gradient, residual, output), self._state.next_round())
        if residual is not None:
            for gap in matrix.gaps:
                residual[gap] = 0  # what quantization made of padding is no gradient
        self._finish_exact(exact, exact_sum, output)
        self._recorder.add_gradient(compressed=sum(part.size for part in matrix.compressed))

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
                label=f"{matrix.key!r} (columns {span.start} to {span.stop} of {matrix.columns})",
                decoded=self.worker,
            )
            yield Passage(piece, list(rows[:, span]), out[span], done=partial(free.append, transfer))

    def _new_transfer(self, columns: int) -> Transfer:
        return self._tools.new_transfer(f"{columns} columns", self.workers, columns)
