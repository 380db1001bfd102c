"""The engine whose codes servers add, put together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from byteps_thc._engine.agreement import Questions
from byteps_thc._engine.engine_state import EngineState
from byteps_thc._engine.figures import PartitionFigures
from byteps_thc._engine.fingerprint import Fingerprints
from byteps_thc._engine.flat_engine import FlatEngine, Place
from byteps_thc._engine.kernels import Kernels
from byteps_thc._engine.layout import Layout
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.residuals import Residuals
from byteps_thc._engine.rollback import Rollback
from byteps_thc._engine.server_piece import ServerTools, of_round, server_pieces
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._engine.work_clock import WorkClock
from byteps_thc._net.communicator import ExactSum
from byteps_thc._net.transport import Transport


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
    communicator. recorder: the transport's too. clock: for several engines that share the CPU. rollback: for several
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
