"""A gradient buffer on the device: all its pieces, which travel together."""

from __future__ import annotations

import torch
from torch import Tensor

from byteps_thc.pipeline.buffers import GradientBuffer
from byteps_thc.pipeline.device.piece import DevicePiece, DeviceTools
from byteps_thc.pipeline.exact import finish_exact, start_exact
from byteps_thc.pipeline.partitioning import partition_spans
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.prepared_buffer import PreparedBuffer
from byteps_thc.pipeline.residuals import Residuals
from byteps_thc.transport.communicator import max_volume_bytes

_ALIGNED_NORMS = 4  # 16 bytes: Triton compiles kernels for such addresses, and others for odd ones
_MAGNITUDE = 0x7FFFFFFF


class DeviceBuffer(PreparedBuffer):
    """Made of the first buffer of a layout, for all that follow."""

    def __init__(self, buffer: GradientBuffer, policy: CompressionPolicy, tools: DeviceTools) -> None:
        super().__init__(buffer, policy, buffer.gradient.device)
        self._tools = tools
        self._workers = torch.tensor(float(tools.compressor.workers), device=buffer.gradient.device)
        self.pieces: list[DevicePiece] = []
        self._norms: Tensor
        self._max_norms: Tensor

    def make_pieces(self, residuals: Residuals[Tensor]) -> None:
        """Bring the parameters' residuals here and make the pieces, whose norms travel as one tensor."""
        compressor = self._tools.compressor
        if compressor.config.error_feedback:
            self.residual = residuals.of(self.key, self.size, self.parameters)
        named = partition_spans(self.key, self.size, compressor.config)
        blocks = [compressor.sizes(span.stop - span.start)[0] for _, span in named]
        rooms = [-(-count // _ALIGNED_NORMS) * _ALIGNED_NORMS for count in blocks]
        self._norms = torch.zeros(sum(rooms), device=self._workers.device)
        self._max_norms = torch.zeros_like(self._norms)
        first = 0
        for (name, span), count, room in zip(named, blocks, rooms, strict=True):
            residual = None if self.residual is None else self.residual[span]
            at = slice(first, first + count)
            piece = DevicePiece(self._tools, name, span, residual, self._norms[at], self._max_norms[at])
            self.pieces.append(piece)
            first += room

    def average(self, gradient: Tensor, round: int, compress: bool) -> None:
        """Replace a gradient by the average over the ranks. Stage by stage: some pieces travel while others work."""
        tools, pieces = self._tools, self.pieces if compress else []
        workers = tools.compressor.workers
        exact = start_exact(self, gradient, compress, tools.communicator.sum_, tools.recorder, workers)
        count = 0 if exact is None else exact.values.numel()
        tools.recorder.add_gradient(compressed=self.size - count, uncompressed=count)
        for piece in pieces:
            piece.measure(gradient[piece.span], round)
        if pieces:
            self._exchange_norms()
        for piece in pieces:
            piece.encode()
        if pieces:
            self.clear_residual()
        for piece in pieces:
            piece.sum()
        for piece in pieces:
            piece.decode(gradient[piece.span])
        averages = [gradient] if pieces and gradient.dtype == torch.float16 else []
        if exact is not None:
            exact.sum.wait()
            averages.append(finish_exact(exact, self, gradient, compress, self._workers))
        if tools.rollback.active:  # averages of finite norms can only leave the range of float16
            for average in averages:
                tools.rollback.request_unless(average.isfinite().all())

    def _exchange_norms(self) -> None:
        """Bring the maximum of the norms here; as integers, which are ordered like them, with NaN above infinity."""
        # What else the ranks must agree on before codes are sent can travel with these words.
        largest = self._max_norms.view(torch.int32)
        torch.bitwise_and(self._norms.view(torch.int32), _MAGNITUDE, out=largest)
        work = self._tools.communicator.max_(largest)
        self._tools.recorder.add_collective(
            max_volume_bytes(largest.nbytes, self._tools.compressor.workers), self._tools.compressor.workers
        )
        work.wait()
