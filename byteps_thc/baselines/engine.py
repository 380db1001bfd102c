"""BaselineEngine: any baseline behind the interface of THC's engines (pipeline/engine.py)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from typing_extensions import override

from byteps_thc.baselines.codec import EncodeContext
from byteps_thc.baselines.config import BaselineConfig, CodecConfig
from byteps_thc.baselines.delivery import CodecDelivery, Delivery, DenseDelivery, UncompressedDelivery
from byteps_thc.baselines.dense import DenseConfig
from byteps_thc.baselines.memory import NoMemory
from byteps_thc.baselines.packed_parameters import PackedParameters
from byteps_thc.pipeline.agreement import Contents, RankAgreement, contents_of
from byteps_thc.pipeline.buffers import GradientBuffer
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.prepared_buffer import check_buffer
from byteps_thc.pipeline.staging import Staging, make_staging
from byteps_thc.pipeline.statistics import CompressionStats
from byteps_thc.pipeline.threaded_engine import ThreadedEngine
from byteps_thc.transport.communicator import Waitable
from byteps_thc.transport.groups import open_communicator
from byteps_thc.transport.handshake import require_same_settings


@dataclass
class _Job:
    """A buffer in the pipeline; host: its gradient in host memory. One collective for each delivery, if any."""

    buffer: GradientBuffer
    staging: Staging
    context: EncodeContext
    compresses: bool
    future: Future[Tensor]
    host: Tensor
    deliveries: list[Delivery] = field(default_factory=list)
    collectives: list[Waitable] = field(default_factory=list)

    @property
    def contents(self) -> Contents:
        """What all ranks must have."""
        return contents_of(self.buffer.key, self.buffer.parameters)

    @property
    def gradient(self) -> Tensor:
        """What the future is to give."""
        return self.buffer.gradient


class BaselineEngine(ThreadedEngine[_Job], Engine):
    """Averages gradient buffers with a baseline.

    process_group: gloo, or NCCL, for which gradients are staged through the host. config: any baseline.
    All ranks of the group must make the engine, with the same settings (ConfigurationError naming what differs).

    One thread encodes and starts the collectives, another waits for them and decodes, so buffers overlap. NaN and
    infinity reach the averages of all ranks, and what travelled with them leaves no residual.
    """

    def __init__(self, process_group: dist.ProcessGroup, config: BaselineConfig, policy: CompressionPolicy) -> None:
        workers, worker = process_group.size(), process_group.rank()
        self.config, self.policy = config, policy
        self._dtype = config.dtype if isinstance(config, DenseConfig) else None
        self._codec = config.codec() if isinstance(config, CodecConfig) else None
        self._memory = config.memory(workers) if isinstance(config, CodecConfig) else NoMemory()
        self._communicator = open_communicator(process_group, policy.deadline_s) if workers > 1 else None
        if self._communicator is not None:
            require_same_settings(self._communicator, workers, config.shared_settings() | policy.shared_settings())
        self._agreement = None if self._communicator is None else RankAgreement(self._communicator, workers)
        self._stagings: dict[str, Staging] = {}
        self._parameters: dict[tuple[str, bool], list[tuple[PackedParameters, bool]]] = {}
        state = EngineState(
            worker,
            workers,
            config.shared_settings(),
            wrap=torch.from_numpy,
            stores=self._memory.stores,
            rollback=self._memory.rollback,
        )
        self._recorder = state.recorder
        super().__init__(state, [("thc-send", self._send), ("thc-receive", self._receive)])

    @override
    def all_reduce(self, buffer: GradientBuffer) -> Future[Tensor]:
        """Start averaging a buffer. With one worker nothing is sent or compressed, but Dgc applies its momentum."""
        self._in_flight.require_free(buffer.key)
        gradient = buffer.gradient
        if buffer.key not in self._stagings:
            check_buffer(buffer)
            self._stagings[buffer.key] = make_staging(gradient, self._recorder)
        if self._codec is not None:  # here, and not in a thread, whose errors end the engine
            for kind, store in self._state.stores.items():
                store.require_fitting(kind, buffer.parameters)
        step = self._state.step
        job = _Job(
            buffer,
            self._stagings[buffer.key],
            EncodeContext(worker=self.worker, round=self._state.next_round(), step=step - self.policy.warmup_steps),
            compresses=self.workers > 1 and self.policy.compresses(step),
            future=Future(devices=[gradient.device] if gradient.is_cuda else None),
            host=gradient,
        )
        self._in_flight.begin(buffer.key, job)
        job.staging.begin(gradient)
        self._threads.submit(job)
        return job.future

    @override
    def statistics(self) -> CompressionStats:
        return self._recorder.snapshot()  # decode() has measured the residuals

    @torch.no_grad()
    def _send(self, job: _Job) -> Iterator[_Job]:
        if self._agreement is not None:  # nothing of it has a fingerprint
            self._agreement.require_same(
                job.contents, self._state.loss_scale, f"round {job.context.round}", str(job.gradient.dtype)
            )
        start = perf_counter()
        job.host = job.staging.fetch(job.buffer.gradient)
        job.deliveries = self._deliveries(job)
        for delivery in job.deliveries:
            delivery.encode()
            if self._communicator is not None:
                job.collectives.append(delivery.send(self._communicator, self._recorder))
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
        self._in_flight.finish(job.buffer.key, job)
        return iter(())

    def _deliveries(self, job: _Job) -> list[Delivery]:
        """What of the buffer travels together; the same on all ranks."""
        if self._codec is None:
            return [DenseDelivery(job.host, self._dtype if job.compresses else None, self.workers)]
        if not job.buffer.parameters:  # gradients of unknown parameters: nothing can be kept of them
            return [DenseDelivery(job.host, None, self.workers)]
        return [
            CodecDelivery(job.host, parameters, self._codec, self._memory, job.context, self.workers)
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
