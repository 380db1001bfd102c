"""A gradient buffer on the device: all its pieces, which travel together.

    measure -> [norms travel] -> encode -> [codes travel] -> sum -> [sums travel] -> decode

All calls come from one thread with the engine's stream as the current one, and only put work on it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from byteps_thc.pipeline.buffers import GradientBuffer
from byteps_thc.pipeline.device.agreement import NormMessage
from byteps_thc.pipeline.device.exchange import DeviceTools, Room, ask, gather_sums, send_codes, sum_shard
from byteps_thc.pipeline.device.recording import Recordings
from byteps_thc.pipeline.exact import finish_exact, take_exact
from byteps_thc.pipeline.partitioning import partition_spans
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.prepared_buffer import PreparedBuffer
from byteps_thc.pipeline.residuals import Residuals
from byteps_thc.transport.communicator import max_volume_bytes
from byteps_thc.transport.shards import ShardLayout, packs_sums

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc.gpu import DeviceBatch


class DeviceBuffer(PreparedBuffer):
    """Made of the first buffer of a layout, for all that follow. batch: its pieces, None before make_pieces()."""

    def __init__(self, buffer: GradientBuffer, policy: CompressionPolicy, tools: DeviceTools) -> None:
        super().__init__(buffer, policy, buffer.gradient.device)
        self._tools = tools
        self._workers = torch.tensor(float(tools.compressor.workers), device=buffer.gradient.device)
        self._recordings = Recordings(tools.record)
        self.batch: DeviceBatch | None = None
        self._layout: ShardLayout
        self._message: NormMessage
        none = torch.empty(0, device=buffer.gradient.device)
        self._question = tools.agreement.message(f"{self.key} uncompressed", self.size, self.contents, none)

    def make_pieces(self, residuals: Residuals[Tensor]) -> None:
        """Bring the parameters' residuals here and make the pieces, whose norms travel as one tensor."""
        compressor = self._tools.compressor
        if compressor.config.error_feedback:
            self.residual = residuals.of(self.key, self.size, self.parameters)
        batch = compressor.batch(partition_spans(self.key, self.size, compressor.config), self.residual)
        self._layout = ShardLayout.of(compressor.resolved, batch.padded)
        self._message = self._tools.agreement.message(self.key, self.size, self.contents, batch.norms)
        self.batch = batch

    def average(self, gradient: Tensor, round: int, compress: bool) -> None:
        """Replace a gradient by the average over the ranks."""
        tools = self._tools
        workers = tools.compressor.workers
        exact = take_exact(self, gradient, compress)
        if exact is not None:
            exact.start(tools.communicator.sum_, tools.recorder, workers)
        count = 0 if exact is None else exact.values.numel()
        tools.recorder.add_gradient(compressed=self.size - count, uncompressed=count)
        if compress and self.batch is not None:
            self._compress(self.batch, gradient, round)
        else:
            ask(tools, self._question, round)
        averages = [gradient] if compress and gradient.dtype == torch.float16 else []
        if exact is not None:
            exact.wait()
            exact.values.masked_fill_(tools.agreement.differ, torch.nan)
            averages.append(finish_exact(exact, self, gradient, compress, self._workers))
        if tools.rollback.active:  # averages of finite norms can only leave the range of float16
            for average in averages:
                tools.rollback.request_unless(average.isfinite().all())

    def _compress(self, batch: DeviceBatch, gradient: Tensor, round: int) -> None:
        """Average it by codes. What run() gets may be replayed: nothing of it but what it puts on the stream counts."""
        tools, run = self._tools, self._recordings.run
        room = tools.workspace.room(self._layout)
        batch.begin(round)
        self._message.begin(round)
        run("norms", partial(self._measure, batch, gradient), gradient)
        self._exchange_norms()
        if self.residual is not None:
            tools.rollback.save(self.residual)
        run("codes", partial(self._encode, batch, gradient, room), gradient, room.sent)
        if tools.rollback.active:
            tools.rollback.request_unless(batch.keep.all())
        send_codes(tools, room)
        run("sums", partial(sum_shard, tools, room), room.sent)
        gather_sums(tools, room)
        run("average", partial(self._decode, batch, gradient, room), gradient, room.sent)

    def _measure(self, batch: DeviceBatch, gradient: Tensor) -> None:
        batch.measure(gradient)
        self._message.write()

    def _exchange_norms(self) -> None:
        tools, sent = self._tools, self._message.sent
        work = tools.communicator.max_(sent)
        workers = tools.compressor.workers
        tools.recorder.add_collective(max_volume_bytes(sent.nbytes, workers), workers)
        work.wait()

    def _encode(self, batch: DeviceBatch, gradient: Tensor, room: Room) -> None:
        """With the maxima that have arrived, NaN where the ranks average different gradients."""
        self._tools.agreement.take(self._message, batch.max_norms.view(torch.int32))
        batch.encode(gradient, room.codes)
        self.clear_residual()

    def _decode(self, batch: DeviceBatch, gradient: Tensor, room: Room) -> None:
        resolved = self._tools.compressor.resolved
        batch.decode(room.aggregate, gradient, sum_bits=resolved.sum_bits if packs_sums(resolved) else None)
