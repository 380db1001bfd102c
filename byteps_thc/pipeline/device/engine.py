"""The collective engine for gradients on a device.

all_reduce() puts everything on a stream of the engine's own, behind the gradient, and returns a future that is done:
who waits for it makes the current stream wait, not the thread. So no thread is needed, and collectives start in the
order of the calls, the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.futures import Future
from typing_extensions import override

from byteps_thc.errors import InputError, TransportError
from byteps_thc.pipeline.buffers import GradientBuffer
from byteps_thc.pipeline.device.agreement import DeviceAgreement
from byteps_thc.pipeline.device.buffer import DeviceBuffer
from byteps_thc.pipeline.device.exchange import DeviceTools, Workspace
from byteps_thc.pipeline.device.figures import DeviceFigures
from byteps_thc.pipeline.device.memory import DeviceMemory, DeviceRollback
from byteps_thc.pipeline.device.recording import Record
from byteps_thc.pipeline.device.stream import SideStream
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.in_flight import InFlight
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.prepared_buffer import PreparedBuffers
from byteps_thc.pipeline.residuals import Residuals
from byteps_thc.pipeline.statistics import CompressionStats, StatsRecorder
from byteps_thc.transport.communicator import Communicator

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc.gpu import GpuCompressor


@dataclass(frozen=True)
class _Job:
    gradient: Tensor
    future: Future[Tensor]


class DeviceEngine(Engine):
    """The engine of byteps_thc/gpu, among ranks; factory.py makes it.

    compressor: with the transport's table, on the device. communicator: of tensors there; nobody else's.
    compress_alone: compress also with one worker, which has nothing to average: for tests and measurements. record: see
    recording.py; None: all is put on the stream anew in each round. Deadlines are the communicator's own: with NCCL its
    watchdog ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING).
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
        self.workers, self.worker = compressor.workers, compressor.worker
        self.config, self.policy = compressor.config, policy
        self._device = compressor.device
        self._idle = self.workers == 1 and not compress_alone
        rollback = DeviceRollback(self._device)
        recorder = StatsRecorder()
        self._state = EngineState(
            self.worker,
            self.workers,
            self.config.model_dump(),
            wrap=torch.from_numpy,
            stores={"residuals": Residuals(DeviceMemory(self._device))},
            recorder=recorder,
            rollback=rollback,
        )
        workspace = Workspace(compressor.resolved, self._device)
        self._agreement = DeviceAgreement(compressor.resolved, self.worker, self._device)
        self._tools = DeviceTools(compressor, communicator, recorder, rollback, workspace, self._agreement, record)
        self._ended: InputError | None = None
        self._figures = DeviceFigures(recorder)
        self._stream = SideStream(self._device)
        self._in_flight: InFlight[_Job] = InFlight()
        self._prepared = PreparedBuffers(self._prepare, self._in_flight, rollback)

    @override
    def start_step(self) -> None:
        """As Engine's. InputError when ranks have averaged different gradients; on a GPU it may come later."""
        with self._stream.behind_current():
            self._end_on(self._agreement.look())
        self._state.start_step()
        self._figures.start_step()

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
    def protect_step(self) -> None:
        with self._stream.behind_current():
            self._state.rollback.begin()

    @override
    def restore_residuals(self) -> None:
        with self._stream.behind_current():
            self._state.rollback.restore()

    @override
    def scale_residuals(self, factor: float) -> None:
        with self._stream.behind_current():
            self._state.scale(factor)

    @override
    def state_dict(self) -> dict[str, Any]:
        """As Engine's; it waits for the device. InputError, once, when ranks have averaged different gradients."""
        with self._stream.behind_current():
            self._require_agreement()
            return self._state.state_dict()

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with self._stream.behind_current():
            self._state.load_state_dict(state)
        self._prepared.clear()

    @override
    def statistics(self) -> CompressionStats:
        """As Engine's; it waits for the device, and raises what state_dict() does. Times are 0: not measured."""
        with self._stream.behind_current():
            self._require_agreement()
            self._figures.read()
            return self._state.statistics()

    @override
    def close(self) -> None:
        self._in_flight.fail(TransportError("the engine was closed"))

    def _require_agreement(self) -> None:
        # One may look at an engine that has ended: its residuals are those from before.
        if self._ended is None:
            self._end_on(self._agreement.wait())

    def _end_on(self, error: InputError | None) -> None:
        self._ended = self._ended or error
        if error is not None:
            self._in_flight.fail(error)
            raise error

    def _prepare(self, buffer: GradientBuffer) -> DeviceBuffer:
        prepared = DeviceBuffer(buffer, self.policy, self._tools)
        if not prepared.all_exact and not self._idle:
            prepared.make_pieces(self._state.residuals)
        return prepared
