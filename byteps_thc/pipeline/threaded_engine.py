"""What engines with a thread per stage have in common: who comes and goes, and what is kept from step to step."""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from typing import Any, Generic

import torch
from typing_extensions import override

from byteps_thc.errors import TransportError
from byteps_thc.pipeline.device.stream import SideStream
from byteps_thc.pipeline.engine import EngineBase
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.in_flight import InFlight, JobT
from byteps_thc.pipeline.stage_threads import Stage, StageThreads
from byteps_thc.pipeline.statistics import CompressionStats
from byteps_thc.pipeline.work_clock import WorkClock


class ThreadedEngine(EngineBase, Generic[JobT]):
    """An engine but for what lets jobs in (_in_flight) and gives them to the threads.

    stages: name of the thread and what it does with a job (stage_threads.py). clock: of the stages; the time in which
    jobs are in flight and none of them works is reported as communicate_ms. stream: on which all work with the state's
    residuals is put; None: they are in host memory.
    """

    def __init__(
        self,
        state: EngineState,
        stages: Sequence[tuple[str, Stage]],
        clock: WorkClock | None = None,
        stream: SideStream | None = None,
    ) -> None:
        self.workers, self.worker = state.workers, state.worker
        self._state = state
        self._clock = clock
        self._stream = stream or SideStream(torch.device("cpu"))
        self._in_flight: InFlight[JobT] = InFlight() if clock is None else InFlight(clock.buffers)
        self._threads = StageThreads(stages, self._in_flight.fail, self._stream.current)
        atexit.register(self.close)

    @override
    def start_step(self) -> None:
        self._state.start_step()
        if self._clock is not None:
            self._clock.take_idle_ms()

    @override
    def protect_step(self) -> None:
        self._in_flight.require_idle("protect_step")
        with self._stream.behind_current():
            self._state.rollback.begin()

    @override
    def restore_residuals(self) -> None:
        self._in_flight.require_idle("restore_residuals")
        with self._stream.behind_current():
            self._state.rollback.restore()

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._in_flight.require_idle("use_loss_scale")
        self._state.loss_scale = scale

    @override
    def scale_residuals(self, factor: float) -> None:
        self._in_flight.require_idle("scale_residuals")
        with self._stream.behind_current():
            self._state.scale(factor)

    @override
    def state_dict(self) -> dict[str, Any]:
        self._in_flight.require_idle("state_dict")
        with self._stream.behind_current():
            return self._state.state_dict()

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._in_flight.require_idle("load_state_dict")
        with self._stream.behind_current():
            self._state.load_state_dict(state)

    @override
    def statistics(self) -> CompressionStats:
        if self._clock is not None:
            self._state.recorder.add_time(communicate_ms=self._clock.take_idle_ms())
        with self._stream.behind_current():
            return self._state.statistics()

    @override
    def close(self) -> None:
        atexit.unregister(self.close)
        self._threads.end()
        self._in_flight.fail(TransportError("the engine was closed"))
        self._close_transport()
        self._threads.join()

    def _close_transport(self) -> None:
        """Let threads that wait for the network go on, to their end."""
