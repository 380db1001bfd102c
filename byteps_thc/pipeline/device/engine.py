"""The collective engine for gradients on a device.

all_reduce() puts everything on a stream of the engine's own, behind the gradient, and returns a future that is done:
who waits for it makes the current stream wait, not the thread. So no thread is needed, and collectives start in the
order of the calls, the same on all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.futures import Future
from typing_extensions import override

from byteps_thc.pipeline.buffers import GradientBuffer
from byteps_thc.pipeline.device.buffer import DeviceBuffer
from byteps_thc.pipeline.device.recording import Record
from byteps_thc.pipeline.device.stateful import StatefulDeviceEngine
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.prepared_buffer import PreparedBuffers
from byteps_thc.transport.communicator import Communicator

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc.gpu import GpuCompressor


@dataclass(frozen=True)
class _Job:
    gradient: Tensor
    future: Future[Tensor]


class DeviceEngine(StatefulDeviceEngine, Engine):
    """The engine of byteps_thc/gpu, among ranks; factory.py makes it.

    compress_alone: compress also with one worker, which has nothing to average: for tests and measurements. record: see
    recording.py; None: all is put on the stream anew in each round.
    """

    def __init__(
        self,
        compressor: GpuCompressor,
        policy: CompressionPolicy,
        communicator: Communicator,
        *,
        compress_alone: bool = False,
        record: Record | None = None,
    ) -> None:
        super().__init__(compressor, policy, communicator, record)
        self._idle = self.workers == 1 and not compress_alone
        self._prepared = PreparedBuffers(self._prepare, self._in_flight, self._tools.rollback)

    @override
    def all_reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        if buffer.gradient.device != self._device:
            return self._reduce_copy(buffer)
        return self._reduce(buffer)

    def _reduce_copy(self, buffer: GradientBuffer) -> Future[Tensor]:
        """Average a gradient that is somewhere else, by way of a copy here; done on return."""
        gradient = buffer.gradient
        copy = torch.empty_like(gradient, device=self._device).copy_(gradient)
        future: Future[Tensor] = Future(devices=[gradient.device] if gradient.is_cuda else None)
        averaged = self._reduce(replace(buffer, gradient=copy))
        try:
            averaged.wait()
        except Exception as error:
            future.set_exception(error)  # type: ignore[arg-type]  # torch's annotation is wrong
            return future
        gradient.copy_(copy)
        if not gradient.is_cuda:
            self._tools.recorder.add_copies(to_host_bytes=gradient.nbytes, to_device_bytes=gradient.nbytes)
        future.set_result(gradient)
        return future

    def _reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        gradient = buffer.gradient
        self._in_flight.require_free(buffer.key)
        future: Future[Tensor] = Future(devices=[self._device] if gradient.is_cuda else None)
        with self._stream.behind_current(gradient), torch.no_grad():
            prepared = self._prepared.of(buffer)
            if self._idle or prepared.size == 0:
                self._tools.recorder.add_gradient(uncompressed=prepared.size)
                future.set_result(gradient)
                return future
            compress = self.policy.compresses(self._state.step) and not prepared.all_exact
            job = _Job(gradient, future)
            self._in_flight.begin(buffer.key, job)
            try:
                prepared.average(gradient, self._state.next_round(), compress)
            except Exception as error:  # Triton's have no other base
                self._in_flight.fail(error)
                return future
            if compress and prepared.batch is not None:
                self._figures.add(prepared.batch)
            # In this stream: what the future's waiters wait for is what has been put on it so far.
            self._in_flight.finish(buffer.key, job)
        return future

    @override
    def _forget_layouts(self) -> None:
        self._prepared.clear()

    def _prepare(self, buffer: GradientBuffer) -> DeviceBuffer:
        prepared = DeviceBuffer(buffer, self.policy, self._tools)
        if not prepared.all_exact and not self._idle:
            prepared.make_pieces(self._state.residuals)
        return prepared
