"""Averages gradient buffers with THC. What happens to a buffer is in stages.py; here is who comes and goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future
from typing_extensions import override

from byteps_thc.pipeline.agreement import RankAgreement
from byteps_thc.pipeline.buffers import GradientBuffer
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.kernels import Kernels
from byteps_thc.pipeline.piece import PieceTools
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.prepared_buffer import PreparedBuffers, StagedBuffer
from byteps_thc.pipeline.residuals import Residuals
from byteps_thc.pipeline.rollback import Rollback
from byteps_thc.pipeline.stages import Job, Stages
from byteps_thc.pipeline.statistics import ResidualGuard, StatsRecorder
from byteps_thc.pipeline.threaded_engine import ThreadedEngine
from byteps_thc.pipeline.work_clock import WorkClock
from byteps_thc.transport.communicator import ExactSum
from byteps_thc.transport.transport import Transport


class ThcEngine(ThreadedEngine[Job], Engine):
    """The threaded engine, on any transport; factory.py makes it.

    kernels: with the transport's table. transport: moves norms, codes and sums. exact: sums small parameters and
    uncompressed steps, host tensors. agreement: asked about these steps, by the same communicator; None: see Stages.
    recorder: the transport's too. clock: for several engines that share the CPU.
    rollback: for several engines whose steps are one, which then have the same kernels.
    """

    def __init__(
        self,
        kernels: Kernels,
        policy: CompressionPolicy,
        *,
        transport: Transport,
        exact: ExactSum,
        agreement: RankAgreement | None = None,
        recorder: StatsRecorder,
        clock: WorkClock | None = None,
        rollback: Rollback[Any] | None = None,
    ) -> None:
        compressor = kernels.compressor
        self.config, self.policy, self._kernels = compressor.config, policy, kernels
        state = EngineState(
            compressor.worker,
            compressor.workers,
            self.config.model_dump(),
            wrap=torch.from_numpy,
            stores={"residuals": Residuals(kernels.memory)},
            recorder=recorder,
            rollback=rollback or Rollback(kernels.memory),
        )
        guard = ResidualGuard(kernels.memory)
        self._tools = PieceTools(compressor, transport, recorder, clock or WorkClock(), state.rollback, guard)
        stages = Stages(self._tools, kernels, exact, agreement, lambda: state.loss_scale, self._finish)
        super().__init__(
            state,
            [
                ("thc-measure", stages.measure),
                ("thc-encode", stages.encode),
                ("thc-sum", stages.sum),
                ("thc-decode", stages.decode),
            ],
            self._tools.clock,
            kernels.stream,
        )
        self._prepared = PreparedBuffers(self._prepare, self._in_flight, state.rollback)

    @override
    def all_reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        self._in_flight.require_free(buffer.key)
        gradient = buffer.gradient
        future: Future[Tensor] = Future(devices=[gradient.device] if gradient.is_cuda else None)
        prepared = self._prepared_of(buffer)
        if self.workers == 1 or prepared.size == 0:
            self._tools.recorder.add_gradient(uncompressed=prepared.size)
            future.set_result(gradient)
            return future
        compress = self.policy.compresses(self._state.step) and not prepared.all_exact
        job = Job(gradient, prepared, self._state.next_round(), compress, future, staged=gradient)
        self._in_flight.begin(buffer.key, job)
        prepared.staging.begin(gradient)
        self._threads.submit(job)
        return future

    @override
    def use_loss_scale(self, scale: float) -> None:
        super().use_loss_scale(scale)
        self._tools.fingerprints.use_loss_scale(scale)

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._prepared.clear()

    @override
    def _close_transport(self) -> None:
        self._tools.transport.close()

    def _prepared_of(self, buffer: GradientBuffer) -> StagedBuffer:
        known = self._prepared.known(buffer)
        if known is not None:
            return known
        with self._stream.behind_current():  # only now: the stream waits for no gradient (staging.py)
            return self._prepared.of(buffer)

    def _prepare(self, buffer: GradientBuffer) -> StagedBuffer:
        prepared = StagedBuffer(buffer, self.policy, self._kernels, self._tools.recorder)
        if not prepared.all_exact and self.workers > 1:
            prepared.make_pieces(self._tools, self._state.residuals)
        return prepared

    def _finish(self, job: Job) -> None:
        self._in_flight.finish(job.prepared.key, job)
