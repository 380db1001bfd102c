"""Several processes of one BytePS worker (the GPUs of a host): they average among themselves, and the local root sends.

    gradient -> [average of the host's processes] -> engine of the local root -> [copied to the others]

BytePS's own intra-host reduction cannot be used: it hands its sums to nobody but BytePS's servers.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.futures import Future
from typing_extensions import override

from byteps_thc.errors import TransportError
from byteps_thc.pipeline.buffers import GradientBuffer
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.in_flight import InFlight
from byteps_thc.pipeline.stage_threads import StageThreads
from byteps_thc.pipeline.staging import Staging, make_staging
from byteps_thc.pipeline.statistics import CompressionStats, StatsRecorder
from byteps_thc.torch.hosts.group import HostGroup
from byteps_thc.torch.hosts.worker_engine import Pending, WorkerEngine


@dataclass
class _Job:
    buffer: GradientBuffer
    staging: Staging
    future: Future[Tensor]
    host: Tensor  # the gradient in host memory
    average: Pending | None = None

    @property
    def gradient(self) -> Tensor:
        """What is averaged."""
        return self.buffer.gradient


class HostEngine(Engine):
    """An Engine whose workers are BytePS's, not processes.

    engine: averages over the workers: a ThcEngine in the local root, a NonRootEngine in the other processes. recorder:
    the engine's.
    """

    def __init__(
        self, group: HostGroup, engine: WorkerEngine, *, workers: int, worker: int, recorder: StatsRecorder
    ) -> None:
        self._recorder = recorder
        self.workers, self.worker = workers, worker
        self._group, self._engine = group, engine
        self._stagings: dict[str, Staging] = {}
        self._in_flight: InFlight[_Job] = InFlight()
        self._threads = StageThreads([("thc-gather", self._gather), ("thc-share", self._share)], self._in_flight.fail)
        atexit.register(self.close)

    @override
    def start_step(self) -> None:
        self._engine.start_step()

    @override
    def all_reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        gradient = buffer.gradient
        future: Future[Tensor] = Future(devices=[gradient.device] if gradient.is_cuda else None)
        if gradient.numel() == 0:
            future.set_result(gradient)
            return future
        if buffer.key not in self._stagings:
            self._stagings[buffer.key] = make_staging(gradient, self._recorder)
        job = _Job(buffer, self._stagings[buffer.key], future, host=gradient)
        self._in_flight.begin(buffer.key, job)
        job.staging.begin(gradient)
        self._threads.submit(job)
        return future

    @override
    def protect_step(self) -> None:
        self._engine.protect_step()

    @override
    def restore_residuals(self) -> None:
        self._engine.restore_residuals()

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._engine.use_loss_scale(scale)

    @override
    def scale_residuals(self, factor: float) -> None:
        self._engine.scale_residuals(factor)

    @override
    def state_dict(self) -> dict[str, Any]:
        return self._engine.state_dict()

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._engine.load_state_dict(state)

    @override
    def statistics(self) -> CompressionStats:
        """Return what compression did and what it cost; all zero but in the local root."""
        return self._engine.statistics()

    @override
    def close(self) -> None:
        atexit.unregister(self.close)
        self._threads.end()
        self._in_flight.fail(TransportError("the engine was closed"))
        self._engine.close()
        self._threads.join()

    def _gather(self, job: _Job) -> Iterator[_Job]:
        job.host = job.staging.fetch(job.gradient)
        self._group.average(job.host)
        job.average = self._engine.all_reduce(replace(job.buffer, gradient=job.host))
        yield job

    def _share(self, job: _Job) -> Iterator[_Job]:
        assert job.average is not None
        job.average.wait()
        self._group.share(job.host)
        job.staging.put_back(job.gradient)
        self._in_flight.finish(job.buffer.key, job)
        return iter(())
