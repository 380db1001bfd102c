"""Builds engines of one level: ranks decode each other's codes, or servers sum them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from byteps_thc._base.arrays import HostZeros
from byteps_thc._base.limits import require_packet_workers
from byteps_thc._engine.adding.feedback import Feedback, GrowthGuard, server_pieces
from byteps_thc._engine.adding.residuals import AddingEngine, AddingState, Residuals, Rollback
from byteps_thc._engine.adding.server_piece import PieceCompressor, ServerTools, in_rounds
from byteps_thc._engine.adding.staged_compressor import StagedCompressor
from byteps_thc._engine.agreement import SAME_MODEL, SAME_ROWS, DeviceAgreement, Questions, RankAgreement
from byteps_thc._engine.decoding.device_piece import DeviceTools, device_pieces
from byteps_thc._engine.decoding.piece import RankTools, rank_pieces
from byteps_thc._engine.device.choice import device_of
from byteps_thc._engine.engine_state import EngineState
from byteps_thc._engine.exact import ExactTools
from byteps_thc._engine.fingerprint import Fingerprints
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.layout import Layout
from byteps_thc._engine.piece import Pieces
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.staging import SideStream, pinned_zeros, staged
from byteps_thc._engine.statistics import StatsRecorder, WorkClock
from byteps_thc._native import _core
from byteps_thc._net.communicator import Asking, Communicator, ExactSum
from byteps_thc._net.failover.opening import open_failover_session
from byteps_thc._net.failover.session import FailoverSession
from byteps_thc._net.groups import Communicators, refusals_told
from byteps_thc._net.handshake import Introductions, introduce
from byteps_thc._net.rank_messages import RankMessages
from byteps_thc._net.run import told_run
from byteps_thc._net.servers import NetworkConfig, ServersTransport
from byteps_thc._net.session import Session
from byteps_thc._net.transport import PlainCollective, TrafficRecorder, Transport
from byteps_thc._net.watch import Watch
from byteps_thc._scheme.adding.compressor import Compressor
from byteps_thc._scheme.adding.server_codes import ResolvedCodes, ServerCodes
from byteps_thc._scheme.decoding.codec import RankCodec
from byteps_thc._scheme.decoding.settings import RankCodes, ResolvedRankCodes

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc._scheme.adding.gpu import GpuCompressor

#: Ranks decode each other's codes, or servers add codes.
Scheme = RankCodes | NetworkConfig


def flat_engine(
    process_group: dist.ProcessGroup,
    scheme: Scheme,
    policy: CompressionPolicy,
    gradients_on: torch.device | None = None,
    communicators: Communicators | None = None,
    *,
    sharded: bool = False,
) -> FlatEngine:
    """Return an engine for a process group (gloo or NCCL); collective.

    gradients_on: device of the gradients, if known; without servers, the same kind on all ranks. With servers, ranks
    may compress on different devices: the bits are the same. communicators: new ones of the group, which end with the
    engine; None: its own. sharded: for a reduce-scatter among the ranks.

    All ranks of the group must call this, in the same order and with the same settings. Raises ConfigurationError if
    ranks have different settings or one cannot have kernels="device", and Session's errors if servers cannot be joined.
    """
    communicators = communicators or Communicators(process_group, policy.deadline_s)
    workers, worker = process_group.size(), process_group.rank()
    if isinstance(scheme, RankCodes):
        codes = scheme.resolve(workers, sharded=sharded)
        kind = "reduce-scatter" if sharded else "collective"
        device, told = _agree(communicators, kind, process_group, scheme, policy, gradients_on)
        # The operations of a communicator start in the order of its thread, the same on all ranks.
        on_host = device is None
        own = communicators.of_host(COMMUNICATORS) if on_host else [communicators.of_device()]
        watch = None if on_host else communicators.watch(_hint(sharded=sharded))
        return rank_engine(
            codes,
            worker,
            policy,
            own,
            device=device,
            sharded=sharded,
            threads=policy.thread_count(told.ranks_on_this_host),
            of_layouts=communicators.for_questions(),
            watch=watch,
            leave=communicators.close,
        )
    require_packet_workers(workers)
    device, told = _agree(communicators, "network", process_group, scheme, policy, gradients_on)
    network = replace(scheme, run=told.run) if told_run(scheme.run) is None else scheme  # on all ranks or none
    threads = policy.thread_count(told.ranks_on_this_host)
    recorder = StatsRecorder(PlainCollective.servers(workers))
    kernels = open_kernels(device, network.codes, workers=workers, worker=worker, threads=threads, recorder=recorder)
    (exact,) = communicators.of_host(1)
    session: Session | FailoverSession
    if network.goes_on(workers):
        moved, lost = partial(recorder.add, server_moves=1), partial(recorder.add, failover_losses=1)
        session = open_failover_session(
            network, communicators.new_store(), worker, workers, policy.deadline_s, moved=moved, lost=lost
        )
    else:
        session = network.open_session(worker, workers, policy.deadline_s)
    return host_engine(
        kernels,
        policy,
        transport=ServersTransport(session, recorder, kernels.host_zeros),
        exact=exact.sum_,
        questions=RankAgreement((exact, workers)),
        recorder=recorder,
        leave=communicators.close,
    )


def _agree(
    communicators: Communicators,
    engine: str,
    process_group: dist.ProcessGroup,
    scheme: Scheme,
    policy: CompressionPolicy,
    gradients_on: torch.device | None,
) -> tuple[torch.device | None, Introductions]:
    """Return device_of()'s result, and the ranks' introductions.

    One exchange compares the settings, of which `engine` is one. Raises what device_of() raises.
    """
    servers, questions = scheme.codes if isinstance(scheme, NetworkConfig) else None, communicators.for_questions()
    with refusals_told(process_group, questions):
        device = device_of(process_group, servers, policy, gradients_on)
    # Servers do not care where codes were made.
    kernels = "any" if servers is not None else "host" if device is None else "device"
    settings = policy.shared_settings() | {"engine": engine, "kernels": kernels}
    everything = shared_settings(scheme, process_group.size()) | settings
    return device, introduce(questions.gather, everything)


def shared_settings(scheme: Scheme, workers: int) -> dict[str, object]:
    """Return the settings that must be the same on all `workers` workers."""
    return scheme.model_dump() if isinstance(scheme, RankCodes) else scheme.shared_settings(workers)


@dataclass(frozen=True)
class Kernels:
    """The tools that compress partitions. stream: of the kernels, on the device that has the residuals."""

    compressor: PieceCompressor
    stream: SideStream

    @property
    def host_zeros(self) -> HostZeros:
        return pinned_zeros(self.stream.device)


def open_kernels(
    device: torch.device | None,
    codes: ServerCodes | ResolvedCodes,
    *,
    workers: int,
    worker: int,
    threads: int,
    recorder: TrafficRecorder,
) -> Kernels:
    """Return the kernels of a device, None for host memory. Raises the errors of Compressor and GpuCompressor."""
    if device is None:
        return Kernels(Compressor(codes, workers=workers, worker=worker, threads=threads), SideStream(_CPU))
    compressor = open_gpu_compressor(device, codes, workers=workers, worker=worker)
    stream = SideStream(compressor.device)
    return Kernels(StagedCompressor(compressor, stream, recorder), stream)


def open_gpu_compressor(
    device: torch.device, codes: ServerCodes | ResolvedCodes, *, workers: int, worker: int
) -> "GpuCompressor":
    from byteps_thc._scheme.adding.gpu import GpuCompressor

    return GpuCompressor(codes, workers=workers, worker=worker, device=device)


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

    kernels: with the transport's table. transport: moves norms, codes and sums, in host memory. exact: sums host
    tensors that travel uncompressed. questions: asked over the same communicator. recorder: the transport's too. clock:
    shared by several engines. rollback: shared by engines whose steps are one. leave: see FlatEngine.
    """
    compressor, resolved = kernels.compressor, kernels.compressor.resolved
    clock, residuals, guard = clock or WorkClock(), Residuals(kernels.stream.device, rollback), GrowthGuard()
    worker, workers = compressor.worker, compressor.workers
    fingerprints = Fingerprints(resolved.identity, worker)
    tools = ServerTools(compressor, transport, recorder, fingerprints, clock)
    exact = exact if isinstance(compressor, Compressor) else staged(exact, recorder)
    exact = residuals.rollback.watched(exact) if resolved.error_feedback else exact
    exact_tools = ExactTools(exact, recorder, workers, kernels.stream.device)

    def pieces_of(layout: Layout) -> Pieces | None:
        if workers == 1:
            return None
        feedback = None
        if resolved.error_feedback and not layout.all_exact:
            residual = residuals.of(layout.size, layout.parameters)
            waiting = layout.tensors if layout.drops_unused else ()
            feedback = Feedback(residual, residuals.rollback, guard, waiting, layout.cleared)
        pieces = [] if layout.all_exact else server_pieces(tools, layout.extent, feedback)
        return in_rounds(pieces, layout, exact_tools, questions)

    return AddingEngine(
        policy,
        kernels.stream,
        AddingState(worker, workers, resolved.codes.model_dump(), recorder, residuals),
        pieces_of,
        in_stream=False,
        fingerprints=fingerprints,
        questions=questions,
        clock=clock,
        hang_up=transport.close,
        leave=leave,
    )


_CPU = torch.device("cpu")
#: Communicators of an engine: for questions and exact sums, for codes, and for averages.
COMMUNICATORS = 3


def rank_engine(
    settings: ResolvedRankCodes,
    rank: int,
    policy: CompressionPolicy,
    communicators: Sequence[Communicator],
    *,
    device: torch.device | None = None,
    sharded: bool = False,
    threads: int = 1,
    of_layouts: Asking | None = None,
    watch: Watch | None = None,
    compress_alone: bool = False,
    leave: Callable[[], None] | None = None,
) -> FlatEngine:
    """Return an engine: in host memory, with a thread for each stage, or on a device.

    communicators: for this engine alone; COMMUNICATORS of host tensors, or one of tensors on the device. device: the
    engine puts everything on its own streams, so that no call waits. Deadlines are the communicator's there: NCCL's
    watchdog ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING). sharded: for a reduce-scatter. threads: of host
    kernels. of_layouts: on a device, ranks compare the first gradient of each layout over it. compress_alone: compress
    on a device even with one rank, for tests and measurements. watch, leave: see FlatEngine.
    """
    recorder = StatsRecorder(PlainCollective.among_ranks(settings.ranks, sharded=sharded))
    clock, hint = WorkClock(), _hint(sharded=sharded)
    fingerprints = Fingerprints(settings.identity, rank)
    alone = settings.ranks == 1 and not (compress_alone or sharded)
    questions: Questions
    pieces_of: Callable[[Layout], Pieces | None]
    if device is None:
        exact, to_owners, of_owners = communicators
        questions = RankAgreement((exact, settings.ranks), hint=hint)
        codec = RankCodec(settings, rank, _core.ThreadPool(threads) if threads > 1 else None)
        messages = RankMessages(to_owners, of_owners, recorder, settings.ranks, _CPU)
        tools = RankTools(codec, messages, fingerprints, recorder, clock)
        pieces_of = partial(rank_pieces, tools, ExactTools(exact.sum_, recorder, settings.ranks, _CPU), questions)
    else:
        [own] = communicators
        layouts = Questions() if of_layouts is None else RankAgreement((of_layouts, settings.ranks), hint=hint)
        questions = agreement = DeviceAgreement(fingerprints, device, own, layouts)
        sums = agreement.spoiled(own.sum_)
        messages = RankMessages(own, own, recorder, settings.ranks, device)
        device_tools = DeviceTools(settings, rank, messages, agreement, recorder)
        pieces_of = partial(device_pieces, device_tools, ExactTools(sums, recorder, settings.ranks, device))
    return FlatEngine(
        policy,
        SideStream(device or _CPU),
        EngineState(rank, settings.ranks, settings.settings, recorder),
        (lambda _: None) if alone else pieces_of,
        in_stream=device is not None,
        fingerprints=fingerprints,
        questions=questions,
        clock=clock,
        watch=watch,
        leave=leave,
    )


def _hint(*, sharded: bool) -> str:
    return SAME_ROWS if sharded else SAME_MODEL
