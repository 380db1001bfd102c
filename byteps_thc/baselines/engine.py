"""BaselineEngine: any baseline behind the interface of THC's engines (engines/engine.py)."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from byteps_thc.baselines.codec import Turn
from byteps_thc.baselines.config import BaselineConfig, CodecConfig
from byteps_thc.baselines.delivery import CodecDelivery, Delivery, DenseDelivery, UncompressedDelivery
from byteps_thc.baselines.dense import DenseConfig
from byteps_thc.baselines.memory import NoMemory
from byteps_thc.baselines.packed_parameters import PackedParameters
from byteps_thc.engines.buffers import GradientBuffer
from byteps_thc.engines.flights import Flights
from byteps_thc.engines.handshake import require_same_settings
from byteps_thc.engines.lanes import Waitable, open_lane
from byteps_thc.engines.layout import check_buffer
from byteps_thc.engines.pipeline import Pipeline
from byteps_thc.engines.policy import CompressionPolicy
from byteps_thc.engines.residuals import Residuals
from byteps_thc.engines.staging import Staging, make_staging
from byteps_thc.engines.state import require_fitting_state
from byteps_thc.errors import ConfigurationError, TransportError
from byteps_thc.statistics import CompressionStats, StatsRecorder

_STATE_VERSION = 1


@dataclass
class _Job:
    """A buffer in the pipeline; host: its gradient in host memory. One collective for each delivery, if any."""

    buffer: GradientBuffer
    staging: Staging
    turn: Turn
    compresses: bool
    future: Future[Tensor]
    host: Tensor
    deliveries: list[Delivery] = field(default_factory=list)
    collectives: list[Waitable] = field(default_factory=list)

    @property
    def gradient(self) -> Tensor:
        """What the future is to give."""
        return self.buffer.gradient


class BaselineEngine:
    """Averages gradient buffers with a baseline; see engine.Engine.

    process_group: gloo, or NCCL, for which gradients are staged through the host. config: any baseline but PowerSgd.
    All ranks of the group must make the engine, with the same settings (ConfigurationError naming what differs).

    One thread encodes and starts the collectives, another waits for them and decodes, so buffers overlap. NaN and
    infinity reach the averages of all ranks, and what travelled with them leaves no residual.
    """

    def __init__(self, process_group: dist.ProcessGroup, config: BaselineConfig, policy: CompressionPolicy) -> None:
        self.workers, self.worker = process_group.size(), process_group.rank()
        self.config, self.policy = config, policy
        if not isinstance(config, DenseConfig | CodecConfig):
            raise ConfigurationError(f"{type(config).__name__} needs whole DDP buckets: use it with byteps_thc.ddp")
        self._dtype = config.dtype if isinstance(config, DenseConfig) else None
        self._codec = config.codec() if isinstance(config, CodecConfig) else None
        self._memory = config.memory(self.workers) if isinstance(config, CodecConfig) else NoMemory()
        self._lane = open_lane(process_group, policy.deadline_s) if self.workers > 1 else None
        if self._lane is not None:
            require_same_settings(self._lane, self.workers, _settings(config) | policy.model_dump())
        self._recorder = StatsRecorder()
        self._stagings: dict[str, Staging] = {}
        self._parameters: dict[tuple[str, bool], list[tuple[PackedParameters, bool]]] = {}
        self._round = 0
        self._steps = 0
        self._flights: Flights[_Job] = Flights()
        self._pipeline = Pipeline([("thc-send", self._send), ("thc-receive", self._receive)], self._flights.fail)
        atexit.register(self.close)

    def start_step(self) -> None:
        """See Engine."""
        self._steps += 1
        self._recorder.step_began()

    def all_reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        """See Engine. With one worker nothing is sent or compressed, but Dgc applies its momentum."""
        gradient = buffer.gradient
        if buffer.key not in self._stagings:
            check_buffer(buffer)
            self._stagings[buffer.key] = make_staging(gradient)
        step = max(self._steps - 1, 0)
        job = _Job(
            buffer,
            self._stagings[buffer.key],
            Turn(worker=self.worker, round=self._round, step=step - self.policy.warmup_steps),
            compresses=self.workers > 1 and self.policy.compresses(step),
            future=Future(devices=[gradient.device] if gradient.is_cuda else None),
            host=gradient,
        )
        self._flights.begin(buffer.key, job)
        self._round += 1
        job.staging.begin(gradient)
        self._pipeline.submit(job)
        return job.future

    def protect_step(self) -> None:
        """See Engine."""
        self._flights.require_idle("protect_step")
        self._memory.backup.begin()

    def restore_residuals(self) -> None:
        """See Engine."""
        self._flights.require_idle("restore_residuals")
        self._memory.backup.restore()

    def scale_residuals(self, factor: float) -> None:
        """See Engine."""
        self._flights.require_idle("scale_residuals")
        self._memory.backup.settle()
        for store in self._memory.stores.values():
            store.scale(factor)

    def state_dict(self) -> dict[str, Any]:
        """See Engine. DGC has "momenta" besides "residuals"."""
        self._flights.require_idle("state_dict")
        self._memory.backup.restore_if_spoiled()
        stores = {name: store.state() for name, store in self._memory.stores.items()}
        return self._identity() | {"round": self._round, "step": self._steps, "residuals": {}} | stores

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Engine. Nothing has changed when the state does not fit or is damaged."""
        self._flights.require_idle("load_state_dict")
        require_fitting_state(state, self._identity(), ("round", "step"))
        stores = {name: Residuals() for name in self._memory.stores}
        for name, store in stores.items():
            store.load(state.get(name, {}))
        self._memory.stores = stores
        self._memory.backup.forget()
        self._round, self._steps = state["round"], state["step"]

    def statistics(self) -> CompressionStats:
        """See Engine."""
        return self._recorder.snapshot()

    def close(self) -> None:
        """See Engine."""
        atexit.unregister(self.close)
        self._pipeline.end()
        self._flights.fail(TransportError("the engine was closed"))
        self._pipeline.join()

    @torch.no_grad()
    def _send(self, job: _Job) -> Iterator[_Job]:
        start = perf_counter()
        job.host = job.staging.fetch(job.buffer.gradient)
        job.deliveries = self._deliveries(job)
        for delivery in job.deliveries:
            delivery.encode()
            if self._lane is not None:
                job.collectives.append(delivery.send(self._lane, self._recorder))
        self._recorder.add_time(encode_ms=(perf_counter() - start) * 1e3)
        yield job

    @torch.no_grad()
    def _receive(self, job: _Job) -> Iterator[None]:
        start = perf_counter()
        for collective in job.collectives:
            collective.wait()
        arrived = perf_counter()
        for delivery in job.deliveries:
            delivery.decode(self._recorder)
        job.staging.put_back(job.buffer.gradient)
        self._recorder.add_time(communicate_ms=(arrived - start) * 1e3, decode_ms=(perf_counter() - arrived) * 1e3)
        self._flights.finish(job.buffer.key, job)
        return iter(())

    def _deliveries(self, job: _Job) -> list[Delivery]:
        """What of the buffer travels together; the same on all ranks."""
        if self._codec is None:
            return [DenseDelivery(job.host, self._dtype if job.compresses else None, self.workers)]
        if not job.buffer.parameters:  # gradients of unknown parameters: nothing can be kept of them
            return [DenseDelivery(job.host, None, self.workers)]
        return [
            CodecDelivery(job.host, parameters, self._codec, self._memory, job.turn, self.workers)
            if compressed
            else UncompressedDelivery(job.host, parameters, self._memory, self.workers)
            for parameters, compressed in self._packed_parameters(job.buffer, job.compresses)
        ]

    def _packed_parameters(self, buffer: GradientBuffer, compresses: bool) -> list[tuple[PackedParameters, bool]]:
        """The buffer's parameters, together with those that are also compressed or not."""
        packed = self._parameters.get((buffer.key, compresses))
        if packed is None:
            smallest = max(self.policy.bypass_elements, 1) if compresses else sys.maxsize
            groups = {
                True: [parameter for parameter in buffer.parameters if parameter.size >= smallest],
                False: [parameter for parameter in buffer.parameters if 0 < parameter.size < smallest],
            }
            packed = self._parameters[buffer.key, compresses] = [
                (PackedParameters(f"{buffer.key}/{compresses}/{compressed}", parameters), compressed)
                for compressed, parameters in groups.items()
                if parameters
            ]
        return packed

    def _identity(self) -> dict[str, Any]:
        return {
            "version": _STATE_VERSION,
            "worker": self.worker,
            "workers": self.workers,
            "config": _settings(self.config),
        }


def _settings(config: BaselineConfig) -> dict[str, Any]:
    return {"scheme": type(config).__name__} | config.model_dump()
