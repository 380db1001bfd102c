"""An engine for a mesh, around the engine of its slow dimension:

    reduce-scatter within the node -> the inner engine averages the shard -> all-gather within the node

What compression keeps and counts is the inner engine's: residuals of this rank's shard, bytes of the slow dimension.
"""

from __future__ import annotations

import atexit
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future
from typing_extensions import override

from byteps_thc.errors import InputError, TransportError
from byteps_thc.pipeline.agreement import label_of
from byteps_thc.pipeline.buffers import GradientBuffer
from byteps_thc.pipeline.device.engine import DeviceEngine
from byteps_thc.pipeline.device.stream import SideStream
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.hierarchy.agreement import MeshAgreement
from byteps_thc.pipeline.hierarchy.bucket_shards import BucketShards
from byteps_thc.pipeline.hierarchy.exchange import ShardExchange
from byteps_thc.pipeline.in_flight import InFlight
from byteps_thc.pipeline.stage_threads import StageThreads
from byteps_thc.pipeline.statistics import CompressionStats, StatsRecorder
from byteps_thc.transport.mesh import MeshGroups


@dataclass
class _Job:
    """A buffer on its way. new: the first one of its layout. host: the gradient where it is exchanged. loss_scale:
    of the gradient. averaged: the shard's average, under way.
    """

    gradient: Tensor
    shards: BucketShards
    round: int
    new: bool
    future: Future[Tensor]
    host: Tensor
    loss_scale: float
    averaged: Future[Tensor] | None = None

    @property
    def description(self) -> str:
        """What must be the same on all ranks."""
        label = label_of(self.shards.parameters)
        sizes = f"{self.shards.size} elements of {self.gradient.dtype}".replace("torch.", "")
        return f"{label} ({sizes}, layout {self.shards.key}), scaled by {self.loss_scale!r}, in round {self.round}"


class HierarchicalEngine(Engine, ABC):
    """inner: of the slow dimension. groups: of this rank. device: where shards are exchanged. Others: their classes."""

    def __init__(
        self,
        inner: Engine,
        groups: MeshGroups,
        exchange: ShardExchange,
        agreement: MeshAgreement,
        device: torch.device,
    ) -> None:
        self.workers, self.worker = groups.size, groups.rank
        self._device = device
        self._inner, self._groups, self._exchange, self._agreement = inner, groups, exchange, agreement
        self._known: dict[str, BucketShards] = {}
        self._recorder = StatsRecorder()  # of the copies to the host and back
        self._in_flight: InFlight[_Job] = InFlight()
        self._round = 0
        self._loss_scale = 1.0

    @override
    def start_step(self) -> None:
        self._in_flight.require_idle("start_step")
        self._inner.start_step()

    @override
    def all_reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        self._in_flight.require_free(buffer.key)
        gradient = buffer.gradient
        future: Future[Tensor] = Future(devices=[gradient.device] if gradient.is_cuda else None)
        known = self._known.get(buffer.key)
        new = known is None or not known.fits(buffer)
        shards = self._prepare(buffer) if known is None or new else known
        if shards.size == 0:
            future.set_result(gradient)
            return future
        job = _Job(gradient, shards, self._round, new, future, gradient, self._loss_scale)
        self._round += 1
        self._in_flight.begin(buffer.key, job)
        self._submit(job)
        return future

    @override
    def protect_step(self) -> None:
        self._in_flight.require_idle("protect_step")
        self._inner.protect_step()

    @override
    def restore_residuals(self) -> None:
        self._in_flight.require_idle("restore_residuals")
        self._inner.restore_residuals()

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._in_flight.require_idle("use_loss_scale")
        self._loss_scale = scale
        self._inner.use_loss_scale(scale)

    @override
    def scale_residuals(self, factor: float) -> None:
        self._in_flight.require_idle("scale_residuals")
        self._inner.scale_residuals(factor)

    @override
    def state_dict(self) -> dict[str, Any]:
        """As Engine's: worker, workers and residuals are those of this rank's shard in the slow dimension."""
        self._in_flight.require_idle("state_dict")
        return self._inner.state_dict()

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._in_flight.require_idle("load_state_dict")
        self._inner.load_state_dict(state)
        self._round = state["round"]

    @override
    def statistics(self) -> CompressionStats:
        """As Engine's, of the shard; bytes are those of the slow dimension, copies those of the whole gradient."""
        figures, copies = self._inner.statistics(), self._recorder.snapshot()
        return replace(
            figures,
            to_host_bytes=figures.to_host_bytes + copies.to_host_bytes,
            to_device_bytes=figures.to_device_bytes + copies.to_device_bytes,
        )

    @override
    def close(self) -> None:
        self._in_flight.fail(TransportError("the engine was closed"))
        self._inner.close()

    @abstractmethod
    def _submit(self, job: _Job) -> None:
        """Start averaging; at the end, or with an error, tell self._in_flight."""

    def _prepare(self, buffer: GradientBuffer) -> BucketShards:
        fast = self._groups.fast
        shards = BucketShards(buffer, fast.rank(), fast.size(), self._device, self._recorder)
        # A parameter lies in one buffer: those it was in before DDP rebuilt its buckets are gone.
        stale = {key for key, known in self._known.items() if key == buffer.key or known.names & shards.names}
        if stale & self._in_flight.keys():
            raise InputError(f"buffer {buffer.key!r} has parameters of buffers in flight")
        for key in stale:
            del self._known[key]
        self._known[buffer.key] = shards
        return shards


class HostHierarchicalEngine(HierarchicalEngine):
    """In host memory, around any engine. One thread brings buffers to the inner engine and another one back, so that
    the node's work on some overlaps with the slow dimension's on others.
    """

    def __init__(self, inner: Engine, groups: MeshGroups, exchange: ShardExchange, agreement: MeshAgreement) -> None:
        super().__init__(inner, groups, exchange, agreement, torch.device("cpu"))
        stages = [("thc-scatter", self._scatter), ("thc-gather", self._gather)]
        self._threads = StageThreads(stages, self._in_flight.fail)
        atexit.register(self.close)

    @override
    def close(self) -> None:
        atexit.unregister(self.close)
        self._threads.end()
        super().close()  # which ends the wait for the inner engine
        self._threads.join()

    @override
    def _submit(self, job: _Job) -> None:
        job.shards.staging.begin(job.gradient)
        self._threads.submit(job)

    def _scatter(self, job: _Job) -> Iterator[_Job]:
        job.host = job.shards.staging.fetch(job.gradient)
        question = self._agreement.ask(job.description)
        if question.node:  # sizes are the same, then
            self._exchange.scatter(job.shards, job.host)
        question.require_yes()
        job.averaged = self._inner.all_reduce(job.shards.shard)
        yield job

    def _gather(self, job: _Job) -> Iterator[None]:
        assert job.averaged is not None
        job.averaged.wait()  # the inner engine has the deadline
        self._exchange.gather(job.shards, job.host)
        job.shards.staging.put_back(job.gradient)
        self._in_flight.finish(job.shards.key, job)
        return iter(())


class DeviceHierarchicalEngine(HierarchicalEngine):
    """On a device, around a DeviceEngine: two more streams beside that engine's, and no wait on the host but for the
    first buffer of a layout, about which the ranks agree.
    """

    def __init__(
        self, inner: DeviceEngine, groups: MeshGroups, exchange: ShardExchange, agreement: MeshAgreement
    ) -> None:
        super().__init__(inner, groups, exchange, agreement, inner.device)
        self._scatter_stream, self._gather_stream = SideStream(inner.device), SideStream(inner.device)

    @override
    def all_reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        if buffer.gradient.device != self._device:
            raise InputError(f"the gradient is on {buffer.gradient.device}, and compressed on {self._device}")
        return super().all_reduce(buffer)

    @override
    def _submit(self, job: _Job) -> None:
        try:
            if job.new:
                self._agreement.ask(job.description).require_yes()
            with self._scatter_stream.behind_current(job.gradient), torch.no_grad():
                self._exchange.scatter(job.shards, job.gradient)
                averaged = self._inner.all_reduce(job.shards.shard)
            with self._gather_stream.behind_current(job.gradient, job.shards.shard.gradient), torch.no_grad():
                averaged.wait()  # the stream waits
                self._exchange.gather(job.shards, job.gradient)
                # In this stream: what the future's waiters wait for is what has been put on it so far.
                self._in_flight.finish(job.shards.key, job)
        except Exception as error:  # Triton's have no other base
            self._in_flight.fail(error)
