"""THC for sharded gradients on a device: every rank gets the average of its own row of a ShardMatrix.

reduce_scatter() puts everything on a stream of the engine's own, behind the gradient, as engine.py does. Rows have the
pieces of the engine in host memory (pipeline/reduce_scatter.py), and with that its random keys and bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.futures import Future
from typing_extensions import override

from byteps_thc import _core
from byteps_thc.errors import InputError
from byteps_thc.pipeline.agreement import Contents
from byteps_thc.pipeline.device.agreement import NormMessage
from byteps_thc.pipeline.device.exchange import DeviceTools, ask
from byteps_thc.pipeline.device.stateful import StatefulDeviceEngine
from byteps_thc.pipeline.partitioning import column_spans
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.prepared_buffer import index_of
from byteps_thc.pipeline.row_engine import RowReduction, require_fitting
from byteps_thc.pipeline.shard_matrix import ExactColumns, ShardMatrix
from byteps_thc.transport.communicator import Communicator, max_volume_bytes

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc.gpu import DeviceBatch, GpuCompressor


@dataclass(frozen=True)
class _Room:
    """Memory of a gradient while it is under way. sent, received: codes, uint8[rows, bytes]. sums: of the own row."""

    sent: Tensor
    received: Tensor
    sums: Tensor

    @classmethod
    def of(cls, rows: int, codes: int, tools: DeviceTools) -> _Room:
        """Return room for rows of so many codes, padded ones included."""
        compressor = tools.compressor
        row_bytes = _core.code_bytes(codes, compressor.config.bits)
        sent = torch.zeros(rows, row_bytes, dtype=torch.uint8, device=compressor.device)
        value_type = torch.uint8 if compressor.resolved.value_bits == 8 else torch.uint16
        return cls(sent, torch.empty_like(sent), torch.zeros(codes, dtype=value_type, device=compressor.device))


class _Rows:
    """What is kept for gradients of one layout.

    residual: float32[matrix.size]; None without error feedback. rooms: by codes of a row, which the gradients of all
    layouts have in turn: the stream does one after the other.
    """

    def __init__(
        self, matrix: ShardMatrix, residual: Tensor | None, tools: DeviceTools, rooms: dict[int, _Room]
    ) -> None:
        compressor = tools.compressor
        self.residual = residual
        self._matrix, self._tools = matrix, tools
        self._gaps = index_of(((gap.start, gap.stop) for gap in matrix.gaps), compressor.device)
        self._workers = torch.tensor(float(compressor.workers), device=compressor.device)
        spans = column_spans(matrix.rows, matrix.columns, compressor.config)
        rows = [None] * matrix.rows if residual is None else residual.view(matrix.rows, matrix.columns)
        self.batches: list[DeviceBatch] = [
            compressor.batch([(f"{matrix.key}[{number},{span.start}:{span.stop}]", span) for span in spans], row)
            for number, row in enumerate(rows)
        ]
        codes = self.batches[0].padded
        if codes not in rooms:
            rooms[codes] = _Room.of(matrix.rows, codes, tools)
        self._room = rooms[codes]
        self._norms = torch.cat([batch.norms for batch in self.batches])
        self._max_norms = torch.empty_like(self._norms)
        contents = Contents(repr(matrix.key), matrix.parameters)
        self._message: NormMessage = tools.agreement.message(matrix.key, matrix.size, contents, self._norms)

    def average(self, gradient: Tensor, output: Tensor, round: int) -> None:
        """Write the average of the own row; the gradient is used as scratch."""
        tools, matrix = self._tools, self._matrix
        exact = ExactColumns(matrix, gradient)
        exact_sum = tools.communicator.sum_(exact.sums) if matrix.exact else None
        if self._gaps is not None:
            gradient.index_fill_(0, self._gaps, 0.0)
        self._compress(gradient.view(matrix.rows, matrix.columns), output, round)
        if exact_sum is not None:
            exact_sum.wait()
            exact.sums.masked_fill_(tools.agreement.differ, torch.nan)
            if tools.rollback.active:
                tools.rollback.request_unless(exact.sums.isfinite().all())
            exact.write_average(output, tools.compressor.worker, self._workers)
        tools.recorder.add_gradient(
            compressed=sum(part.size for part in matrix.compressed), uncompressed=exact.sums.numel()
        )
        tools.recorder.add_collective(2 * exact.sums.nbytes, tools.compressor.workers)

    def _compress(self, rows: Tensor, output: Tensor, round: int) -> None:
        tools, room = self._tools, self._room
        for batch, row in zip(self.batches, rows, strict=True):
            batch.begin(round)
            batch.measure(row)
        self._exchange_norms(round)
        if self.residual is not None:
            tools.rollback.save(self.residual)
        for batch, row, codes in zip(self.batches, rows, room.sent, strict=True):
            batch.encode(row, codes)
            if tools.rollback.active:
                tools.rollback.request_unless(batch.keep.all())
        if self.residual is not None and self._gaps is not None:
            self.residual.index_fill_(0, self._gaps, 0.0)  # what quantization made of padding is no gradient
        work = tools.communicator.all_to_all(room.received.view(-1), room.sent.view(-1))
        tools.recorder.add_collective(room.sent.numel(), tools.compressor.workers)
        work.wait()
        tools.compressor.lookup_sum(room.received, room.sums)
        self.batches[tools.compressor.worker].decode(room.sums, output)

    def _exchange_norms(self, round: int) -> None:
        """Bring the maximum of the norms to the rows, NaN where the ranks average different gradients."""
        tools, message = self._tools, self._message
        torch.cat([batch.norms for batch in self.batches], out=self._norms)
        message.begin(round)
        message.write()
        work = tools.communicator.max_(message.sent)
        workers = tools.compressor.workers
        tools.recorder.add_collective(max_volume_bytes(message.sent.nbytes, workers), workers)
        work.wait()
        tools.agreement.take(message, self._max_norms.view(torch.int32))
        maxima = torch.split(self._max_norms, [batch.norms.numel() for batch in self.batches])
        torch._foreach_copy_([batch.max_norms for batch in self.batches], list(maxima))


class DeviceReduceScatter(StatefulDeviceEngine):
    """The row engine of byteps_thc/gpu, among ranks; factory.py makes it. Arguments as DeviceEngine's."""

    def __init__(self, compressor: GpuCompressor, policy: CompressionPolicy, communicator: Communicator) -> None:
        super().__init__(compressor, policy, communicator)
        self._known: dict[str, _Rows] = {}
        self._rooms: dict[int, _Room] = {}
        self._questions: dict[str, NormMessage] = {}  # about gradients that are reduced without this engine

    @property
    def compressing(self) -> bool:
        """See RowEngine."""
        return self.policy.compresses(self._state.step)

    def require_same(self, label: str, matrix: ShardMatrix) -> None:
        """See RowEngine; the error comes with the next step. Sizes that differ end by NCCL's watchdog."""
        message = self._questions.get(label)
        if message is None:
            none = torch.empty(0, device=self._device)
            contents = Contents(label, matrix.parameters)
            message = self._questions[label] = self._tools.agreement.message(label, matrix.size, contents, none)
        with self._stream.behind_current(), torch.no_grad():
            ask(self._tools, message, self._state.round)

    def count_uncompressed(self, elements: int, element_bytes: int) -> None:
        """See RowEngine."""
        self._tools.recorder.add_gradient(uncompressed=elements)
        self._tools.recorder.add_collective(elements * element_bytes, self.workers)

    def reduce_scatter(self, label: str, matrix: ShardMatrix, gradient: Tensor, output: Tensor) -> RowReduction:
        """As RowEngine's, for tensors on the device. Who waits for it makes the current stream wait, not the thread."""
        require_fitting(matrix, self.workers, gradient, output)
        if output.device != self._device:
            raise InputError(f"gradient is on {output.device}, not on {self._device}: build the model there")
        future: Future[Tensor] = Future(devices=[self._device] if output.is_cuda else None)
        with self._stream.behind_current(gradient, output), torch.no_grad():
            rows = self._rows(matrix)
            contents = Contents(label, matrix.parameters)
            reduction = RowReduction(contents, output, matrix, gradient, self._state.next_round(), future=future)
            self._in_flight.begin(label, reduction)
            try:
                rows.average(gradient, output, reduction.round)
            except Exception as error:  # Triton's have no other base
                self._in_flight.fail(error)
                return reduction
            for batch in rows.batches:
                self._figures.add(batch)
            # In this stream: what the future's waiters wait for is what has been put on it so far.
            self._in_flight.finish(label, reduction)
        return reduction

    @override
    def _forget_layouts(self) -> None:
        self._known.clear()

    def _rows(self, matrix: ShardMatrix) -> _Rows:
        residual = None
        if self.config.error_feedback:  # each time: parameters may have moved to another layout and back
            residual = self._state.residuals.of(matrix.key, matrix.size, matrix.compressed)
        known = self._known.get(matrix.key)
        if known is None or known.residual is not residual:
            known = self._known[matrix.key] = _Rows(matrix, residual, self._tools, self._rooms)
        return known
