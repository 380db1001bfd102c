"""Engines of THC, put together: with codes that travel through host memory, or in the memory of a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from byteps_thc.arrays import residual_tensor
from byteps_thc.pipeline.agreement import Questions
from byteps_thc.pipeline.device.agreement import DeviceAgreement
from byteps_thc.pipeline.device.memory import DeviceMemory, DeviceRollback
from byteps_thc.pipeline.device.rows import DeviceFigures, DeviceRows
from byteps_thc.pipeline.device.stream import SideStream
from byteps_thc.pipeline.engine_state import EngineState
from byteps_thc.pipeline.figures import PartitionFigures
from byteps_thc.pipeline.fingerprint import HostAgreement
from byteps_thc.pipeline.flat_engine import FlatEngine, Place
from byteps_thc.pipeline.kernels import Kernels
from byteps_thc.pipeline.piece import PieceTools
from byteps_thc.pipeline.piece_rows import PartitionRows
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.residuals import Residuals
from byteps_thc.pipeline.rollback import Rollback
from byteps_thc.pipeline.scheme import ThcScheme
from byteps_thc.pipeline.staging import Staging, make_device_staging
from byteps_thc.pipeline.statistics import ResidualGuard, StatsRecorder
from byteps_thc.pipeline.work_clock import WorkClock
from byteps_thc.transport.among_ranks import STREAMS, ranks_transport
from byteps_thc.transport.communicator import Communicator, ExactSum
from byteps_thc.transport.recorder import PlainCollective
from byteps_thc.transport.transport import Transport

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc.gpu import GpuCompressor


def host_engine(
    kernels: Kernels,
    policy: CompressionPolicy,
    *,
    transport: Transport,
    exact: ExactSum,
    questions: Questions,
    asks_first: bool = False,
    recorder: StatsRecorder,
    clock: WorkClock | None = None,
    rollback: Rollback[Any] | None = None,
    leave: Callable[[], None] | None = None,
) -> FlatEngine:
    """Return an engine with a thread for each stage.

    kernels: with the transport's table. transport: moves norms, codes and sums, in host memory. exact: sums small
    parameters and uncompressed steps, host tensors. questions, asks_first: see FlatEngine; asked by the same
    communicator. recorder: the transport's too. clock: for several engines that share the CPU. rollback: for several
    engines whose steps are one, which then have the same kernels. leave: see FlatEngine.
    """
    compressor, clock = kernels.compressor, clock or WorkClock()
    rollback = rollback or Rollback(kernels.memory)
    state = _state(compressor, recorder, rollback, Residuals(kernels.memory))
    tools = PieceTools(
        PartitionRows(compressor),
        transport,
        HostAgreement(compressor.resolved, compressor.worker),
        PartitionFigures(recorder, ResidualGuard(kernels.memory)),
        clock,
        rollback,
    )
    staging = partial(kernels.staging, recorder=recorder)
    return FlatEngine(
        compressor.config,
        policy,
        Place(kernels.device, kernels.stream, in_stream=False, staging=staging),
        state,
        ThcScheme(tools, lambda: state.residuals, kernels.tensor),
        figures=tools.figures,
        exact=kernels.sum_here(exact, recorder),
        questions=questions,
        asks_first=asks_first,
        alone=compressor.workers == 1,
        clock=clock,
        leave=leave,
    )


def device_engine(
    compressor: GpuCompressor,
    policy: CompressionPolicy,
    communicator: Communicator,
    *,
    sharded: bool = False,
    compress_alone: bool = False,
    leave: Callable[[], None] | None = None,
) -> FlatEngine:
    """Return an engine among ranks that puts everything on a stream of its own: no call waits for the device.

    compressor: with the transport's table, on the device. communicator: of tensors there; nobody else's. Deadlines are
    the communicator's own: with NCCL its watchdog ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING). sharded: for a
    reduce-scatter. compress_alone: compress also with one worker, which has nothing to average: for tests and
    measurements. leave: see FlatEngine.
    """
    device, resolved = compressor.device, compressor.resolved
    recorder = StatsRecorder(PlainCollective.among_ranks(compressor.workers, sharded=sharded))
    stream, rollback, clock = SideStream(device), DeviceRollback(device), WorkClock()
    agreement = DeviceAgreement(resolved, compressor.worker, device, communicator)
    state = _state(compressor, recorder, rollback, Residuals(DeviceMemory(device, compressor.config.residual_dtype)))

    tools = PieceTools(
        DeviceRows(compressor, packed=not sharded and policy.collective == "shards"),
        ranks_transport(
            policy.collective,
            resolved,
            [communicator] * STREAMS[policy.collective],
            recorder,
            compressor,
            device,
            sharded=sharded,
        ),
        agreement,
        DeviceFigures(recorder),
        clock,
        rollback,
        exact=communicator.sum_,
        timed=False,
    )

    def staging(gradient: Tensor) -> Staging | None:
        return None if gradient.device == device else make_device_staging(gradient, stream, recorder)

    return FlatEngine(
        compressor.config,
        policy,
        Place(device, stream, in_stream=True, staging=staging),
        state,
        ThcScheme(tools, lambda: state.residuals, _same),
        figures=tools.figures,
        exact=agreement.spoiled(communicator.sum_),
        questions=agreement,
        alone=compressor.workers == 1 and not compress_alone and not sharded,
        clock=clock,
        leave=leave,
    )


def _state(compressor: Any, recorder: StatsRecorder, rollback: Rollback[Any], residuals: Residuals[Any]) -> EngineState:
    return EngineState(
        compressor.worker,
        compressor.workers,
        compressor.resolved.settings,
        wrap=residual_tensor,
        stores={"residuals": residuals},
        recorder=recorder,
        rollback=rollback,
    )


def _same(tensor: Tensor) -> Tensor:
    return tensor
