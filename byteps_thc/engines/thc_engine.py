"""Averages gradient buffers with THC. What happens to a buffer is in stages.py; here is who comes and goes."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.futures import Future

from byteps_thc.compressor import Compressor
from byteps_thc.config import ResolvedConfig
from byteps_thc.engines.buffers import GradientBuffer
from byteps_thc.engines.flights import Flights
from byteps_thc.engines.layout import Layout, check_buffer
from byteps_thc.engines.pipeline import Pipeline
from byteps_thc.engines.policy import CompressionPolicy
from byteps_thc.engines.residuals import Residuals
from byteps_thc.engines.stages import Job, Stages
from byteps_thc.engines.state import require_fitting_state
from byteps_thc.engines.step_backup import StepBackup
from byteps_thc.engines.transport import ExactSum, Transport
from byteps_thc.engines.work_clock import WorkClock
from byteps_thc.errors import InputError, TransportError
from byteps_thc.statistics import CompressionStats, StatsRecorder

_STATE_VERSION = 1


class ThcEngine:
    """See engine.Engine. CollectiveEngine and NetworkEngine are this with their transports.

    resolved: with the transport's table. transport: moves norms, codes and sums. exact: sums small parameters and
    uncompressed steps. recorder: the transport's too. clock: for several engines that share the CPU, which entering
    WorkClock.working() may make wait. backup: for several engines whose steps are one.
    """

    def __init__(
        self,
        resolved: ResolvedConfig,
        policy: CompressionPolicy,
        *,
        worker: int,
        transport: Transport,
        exact: ExactSum,
        recorder: StatsRecorder,
        clock: WorkClock | None = None,
        backup: StepBackup | None = None,
    ) -> None:
        self._resolved = resolved
        self.config, self.policy = resolved.config, policy
        self.workers, self.worker = resolved.workers, worker
        self._transport, self._recorder, self._clock = transport, recorder, clock or WorkClock()
        self._residuals = Residuals()
        self._layouts: dict[str, Layout] = {}
        self._steps = 0
        self._measured_step = 0  # of which the recorder has the residuals
        self._round = 0
        self._backup = backup or StepBackup()
        self._flights: Flights[Job] = Flights(self._clock.buffers)
        stages = Stages(self.workers, transport, exact, recorder, self._clock, self._backup, self._finish)
        self._pipeline = Pipeline(
            [
                ("thc-measure", stages.measure),
                ("thc-encode", stages.encode),
                ("thc-sum", stages.sum),
                ("thc-decode", stages.decode),
            ],
            self._flights.fail,
        )
        atexit.register(self.close)

    def start_step(self) -> None:
        """See Engine."""
        self._steps += 1
        self._recorder.step_began()
        self._clock.take_idle_ms()

    def all_reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        """See Engine."""
        self._flights.require_working()
        gradient = buffer.gradient
        future: Future[Tensor] = Future(devices=[gradient.device] if gradient.is_cuda else None)
        layout = self._layouts.get(buffer.key)
        if layout is None or layout.size != gradient.numel() or layout.parameters != buffer.parameters:
            layout = self._new_layout(buffer)
        if self.workers == 1 or layout.size == 0:
            self._recorder.add_gradient(uncompressed=layout.size)
            future.set_result(gradient)
            return future
        compress = self.policy.compresses(max(self._steps - 1, 0)) and not layout.all_exact
        job = Job(gradient, layout, self._round, compress, future, host=gradient)
        self._round = (self._round + 1) % (1 << 32)
        self._flights.begin(buffer.key, job)
        layout.staging.begin(gradient)
        self._pipeline.submit(job)
        return future

    def protect_step(self) -> None:
        """See Engine."""
        self._flights.require_idle("protect_step")
        self._backup.begin()

    def restore_residuals(self) -> None:
        """See Engine."""
        self._flights.require_idle("restore_residuals")
        self._backup.restore()

    def scale_residuals(self, factor: float) -> None:
        """See Engine."""
        self._flights.require_idle("scale_residuals")
        self._backup.settle()
        self._residuals.scale(factor)

    def state_dict(self) -> dict[str, Any]:
        """See Engine."""
        self._flights.require_idle("state_dict")
        self._backup.restore_if_spoiled()
        counters = {"round": self._round, "step": self._steps}
        return self._identity() | counters | {"residuals": self._residuals.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Engine."""
        self._flights.require_idle("load_state_dict")
        require_fitting_state(state, self._identity(), ("round", "step"))
        self._residuals.load(state["residuals"])
        self._backup.forget()
        self._layouts.clear()
        self._round, self._steps = state["round"], state["step"]

    def statistics(self) -> CompressionStats:
        """See Engine. The residuals are measured here, once a step: it takes a pass over all of them."""
        self._recorder.add_time(communicate_ms=self._clock.take_idle_ms())
        if self._measured_step != self._steps:
            self._measured_step = self._steps
            self._recorder.add_quantization(coordinates=0, clamped=0, lost_energy=self._residuals.energy())
        return self._recorder.snapshot()

    def close(self) -> None:
        """See Engine."""
        atexit.unregister(self.close)
        self._pipeline.end()
        self._flights.fail(TransportError("the engine was closed"))
        self._transport.close()
        self._pipeline.join()

    def _new_layout(self, buffer: GradientBuffer) -> Layout:
        check_buffer(buffer)
        layout = Layout(buffer, self.policy)
        # A parameter lies in one layout: those it was in before DDP rebuilt its buckets are gone.
        stale = {key for key, known in self._layouts.items() if key == buffer.key or known.names & layout.names}
        if stale & self._flights.keys():
            raise InputError(f"buffer {buffer.key!r} has parameters of buffers in flight")
        if stale:
            # In the middle of a step that is protected, if ever: the rest of it is protected in its new place.
            self._backup.settle()
        if not layout.all_exact and self.workers > 1:
            compressor = Compressor(self._resolved, workers=self.workers, worker=self.worker)
            layout.prepare(compressor, self._transport, self._residuals)
        for key in stale:
            del self._layouts[key]
        self._layouts[buffer.key] = layout
        return layout

    def _finish(self, job: Job) -> None:
        self._flights.finish(job.layout.key, job)

    def _identity(self) -> dict[str, Any]:
        return {
            "version": _STATE_VERSION,
            "worker": self.worker,
            "workers": self.workers,
            "config": self.config.model_dump(),
        }
