"""The engine whose codes servers add, put together: with kernels in host memory, or on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from byteps_thc._engine.agreement import Questions
from byteps_thc._engine.device.staged_compressor import StagedCompressor
from byteps_thc._engine.device.stream import SideStream
from byteps_thc._engine.engine_state import EngineState
from byteps_thc._engine.fingerprint import Fingerprints
from byteps_thc._engine.flat_engine import FlatEngine, Place
from byteps_thc._engine.layout import Layout
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.residuals import Residuals
from byteps_thc._engine.rollback import Rollback
from byteps_thc._engine.server_piece import PartitionFigures, ServerTools, of_round, server_pieces
from byteps_thc._engine.staging import StagedSum, Staging, make_device_staging, make_staging, pinned_zeros
from byteps_thc._engine.statistics import StatsRecorder, WorkClock
from byteps_thc._net.communicator import ExactSum
from byteps_thc._net.recorder import TrafficRecorder
from byteps_thc._net.transport import Transport
from byteps_thc._scheme.arrays import HostZeros
from byteps_thc._scheme.compressor import Compressor
from byteps_thc._scheme.config import ResolvedConfig, ThcConfig

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc._scheme.gpu import GpuCompressor

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Kernels:
    """What partitions are compressed with. device: where the kernels work, and residuals are; on `stream`."""

    compressor: Compressor | StagedCompressor
    device: torch.device
    stream: SideStream

    @property
    def host_zeros(self) -> HostZeros:
        """What makes the arrays that codes and sums travel in."""
        return pinned_zeros(self.device)

    def staging(self, gradient: Tensor, recorder: TrafficRecorder) -> Staging | None:
        """Return what brings gradients like this one to the kernels; None: they are there. recorder: counts copies."""
        if isinstance(self.compressor, Compressor):
            return make_staging(gradient, recorder)
        return make_device_staging(gradient, self.stream, recorder)

    def sum_here(self, exact: ExactSum, recorder: TrafficRecorder) -> ExactSum:
        """Return a sum of float32 tensors where the kernels work, made of one of host tensors."""
        return exact if isinstance(self.compressor, Compressor) else StagedSum(exact, recorder)


def open_kernels(
    device: torch.device | None,
    config: ThcConfig | ResolvedConfig,
    *,
    workers: int,
    worker: int,
    threads: int,
    recorder: TrafficRecorder,
) -> Kernels:
    """Return those of a device, None for host memory; raises what Compressor and GpuCompressor raise."""
    if device is None:
        return Kernels(Compressor(config, workers=workers, worker=worker, threads=threads), _CPU, SideStream(_CPU))
    return device_kernels(open_gpu_compressor(device, config, workers=workers, worker=worker), recorder)


def device_kernels(compressor: GpuCompressor, recorder: TrafficRecorder) -> Kernels:
    """Return those of gpu/, for engines whose codes travel through host memory, and which have the recorder, too."""
    stream = SideStream(compressor.device)
    return Kernels(StagedCompressor(compressor, stream, recorder), compressor.device, stream)


def open_gpu_compressor(
    device: torch.device, config: ThcConfig | ResolvedConfig, *, workers: int, worker: int
) -> GpuCompressor:
    """Return a GpuCompressor, whose module needs Triton."""
    from byteps_thc._scheme.gpu import GpuCompressor

    return GpuCompressor(config, workers=workers, worker=worker, device=device)


def host_engine(
    kernels: Kernels,
    policy: CompressionPolicy,
    *,
    transport: Transport,
    exact: ExactSum,
    questions: Questions,
    recorder: StatsRecorder,
    clock: WorkClock | None = None,
    rollback: Rollback | None = None,
    leave: Callable[[], None] | None = None,
) -> FlatEngine:
    """Return an engine with a thread for each stage.

    kernels: with the transport's table. transport: moves norms, codes and sums, in host memory. exact: sums small
    parameters and uncompressed steps, host tensors. questions: see FlatEngine; asked by the same
    communicator. recorder: the transport's too. clock: of several engines together. rollback: for several
    engines whose steps are one, which then have the same kernels. leave: see FlatEngine.
    """
    compressor, clock = kernels.compressor, clock or WorkClock()
    rollback, residuals = rollback or Rollback(), Residuals(kernels.device, compressor.config.residual_dtype)
    fingerprints = Fingerprints(compressor.resolved.identity, compressor.worker)
    tools = ServerTools(compressor, transport, fingerprints, PartitionFigures(recorder), clock, rollback)

    def prepare(layout: Layout) -> None:
        if layout.all_exact:
            return
        if compressor.resolved.error_feedback:
            layout.residual = residuals.of(layout.key, layout.size, layout.parameters)
        layout.pieces = partial(of_round, server_pieces(tools, layout.extent, layout.residual))

    return FlatEngine(
        policy,
        Place(kernels.device, kernels.stream, in_stream=False, staging=partial(kernels.staging, recorder=recorder)),
        EngineState(
            compressor.worker,
            compressor.workers,
            compressor.resolved.settings,
            residuals=residuals,
            recorder=recorder,
            rollback=rollback,
        ),
        prepare,
        fingerprints=fingerprints,
        exact=kernels.sum_here(exact, recorder),
        questions=questions,
        alone=compressor.workers == 1,
        clock=clock,
        hang_up=transport.close,
        leave=leave,
    )
