"""Several processes of one BytePS worker (the GPUs of a host): they average among themselves, and one speaks for them.

    gradient -> [average of the host's processes] -> engine of the process that speaks -> [copied to the others]

BytePS's own intra-host reduction cannot be used: it hands its sums to nobody but BytePS's servers.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.futures import Future

from byteps_thc.engines.buffers import GradientBuffer
from byteps_thc.engines.flights import Flights
from byteps_thc.engines.pipeline import Pipeline
from byteps_thc.engines.staging import Staging, make_staging
from byteps_thc.engines.thc_engine import ThcEngine
from byteps_thc.errors import TransportError
from byteps_thc.statistics import CompressionStats
from byteps_thc.torch.host_group import HostGroup
from byteps_thc.torch.silent_engine import Pending, SilentEngine


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


class HostEngine:
    """See engine.Engine; its workers are BytePS's, not processes.

    engine: the one that averages over the workers, in the process that speaks; in the others what BytePS needs of them.
    """

    def __init__(self, group: HostGroup, engine: ThcEngine | SilentEngine, *, workers: int, worker: int) -> None:
        self.workers, self.worker = workers, worker
        self._group, self._engine = group, engine
        self._stagings: dict[str, Staging] = {}
        self._flights: Flights[_Job] = Flights()
        self._pipeline = Pipeline([("thc-gather", self._gather), ("thc-share", self._share)], self._flights.fail)
        atexit.register(self.close)

    def start_step(self) -> None:
        """See Engine."""
        self._engine.start_step()

    def all_reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        """See Engine."""
        gradient = buffer.gradient
        future: Future[Tensor] = Future(devices=[gradient.device] if gradient.is_cuda else None)
        if gradient.numel() == 0:
            future.set_result(gradient)
            return future
        if buffer.key not in self._stagings:
            self._stagings[buffer.key] = make_staging(gradient)
        job = _Job(buffer, self._stagings[buffer.key], future, host=gradient)
        self._flights.begin(buffer.key, job)
        job.staging.begin(gradient)
        self._pipeline.submit(job)
        return future

    def protect_step(self) -> None:
        """See Engine."""
        self._engine.protect_step()

    def restore_residuals(self) -> None:
        """See Engine."""
        self._engine.restore_residuals()

    def scale_residuals(self, factor: float) -> None:
        """See Engine."""
        self._engine.scale_residuals(factor)

    def state_dict(self) -> dict[str, Any]:
        """See Engine."""
        return self._engine.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Engine."""
        self._engine.load_state_dict(state)

    def statistics(self) -> CompressionStats:
        """See Engine: all zero but in the process that speaks."""
        return self._engine.statistics()

    def close(self) -> None:
        """See Engine."""
        atexit.unregister(self.close)
        self._pipeline.end()
        self._flights.fail(TransportError("the engine was closed"))
        self._engine.close()
        self._pipeline.join()

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
        self._flights.finish(job.buffer.key, job)
        return iter(())
