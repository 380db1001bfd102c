"""Builds engines of one level: ranks decode each other's codes, or servers sum them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from byteps_thc._engine.agreement import SAME_MODEL, SAME_ROWS, DeviceAgreement, Questions, RankAgreement
from byteps_thc._engine.device.choice import device_of
from byteps_thc._engine.device.staged_compressor import StagedCompressor
from byteps_thc._engine.engine_state import EngineState
from byteps_thc._engine.fingerprint import Fingerprints
from byteps_thc._engine.flat_engine import FlatEngine, Place
from byteps_thc._engine.layout import Layout
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.ranks.codec import RankCodec
from byteps_thc._engine.ranks.device_piece import DeviceTools, prepare_device_pieces
from byteps_thc._engine.ranks.piece import RankTools, prepare_rank_pieces
from byteps_thc._engine.residuals import Residuals, Rollback
from byteps_thc._engine.server_piece import PartitionFigures, ServerTools, of_round, server_pieces
from byteps_thc._engine.staging import SideStream, StagedSum, Staging, make_device_staging, make_staging, pinned_zeros
from byteps_thc._engine.statistics import StatsRecorder, WorkClock
from byteps_thc._native import _core
from byteps_thc._net.communicator import Asking, Communicator, ExactSum
from byteps_thc._net.failover.opening import open_failover_session
from byteps_thc._net.failover.session import FailoverSession
from byteps_thc._net.groups import Communicators
from byteps_thc._net.handshake import Introductions, introduce
from byteps_thc._net.rank_messages import RankMessages
from byteps_thc._net.run import told_run
from byteps_thc._net.servers import NetworkConfig, ServersTransport
from byteps_thc._net.session import Session
from byteps_thc._net.transport import PlainCollective, TrafficRecorder, Transport
from byteps_thc._scheme.arrays import HostZeros
from byteps_thc._scheme.compressor import Compressor
from byteps_thc._scheme.config import ResolvedConfig, ThcConfig
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.limits import require_packet_workers
from byteps_thc._scheme.rank_settings import RankSettings

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc._scheme.gpu import GpuCompressor


#: Largest piece among ranks, in bytes of gradient, unless ThcConfig.partition_bytes is given. DDP's buckets of 25 MiB,
#: or a little more, are three pieces, so that stages of one bucket overlap.
_PIECE_BYTES = 9 << 20


def flat_engine(
    process_group: dist.ProcessGroup,
    config: ThcConfig,
    policy: CompressionPolicy,
    network: NetworkConfig | None = None,
    gradients_on: torch.device | None = None,
    communicators: Communicators | None = None,
    *,
    sharded: bool = False,
) -> FlatEngine:
    """Return an engine for a process group (gloo or NCCL); collective.

    network: servers or a switch that sum; None: the ranks do. gradients_on: device of the gradients, if known; without
    servers, the same kind on all ranks. With servers, ranks may compress on different devices: the bits are the same.
    communicators: new ones of the group, which end with the engine; None: its own. sharded: for a reduce-scatter among
    the ranks.

    All ranks of the group must call this, in the same order and with the same settings. Raises ConfigurationError if
    ranks have different settings or one cannot have kernels="device", and Session's errors if servers cannot be joined.
    """
    if sharded:
        config.warn_of_ignored_bits("FSDP2's reduce-scatters", process_group.rank())
    communicators = communicators or Communicators(process_group, policy.deadline_s)
    workers, worker = process_group.size(), process_group.rank()
    if network is None:
        if "partition_bytes" not in config.model_fields_set:
            config = config.model_copy(update={"partition_bytes": _PIECE_BYTES})
        resolve = partial(RankSettings.of, config, workers, sharded=sharded)
        kind = "reduce-scatter" if sharded else "collective"
        device, told = _agree(communicators, kind, process_group, config, policy, gradients_on, resolve=resolve)
        # The operations of a communicator start in the order of its thread, the same on all ranks.
        on_host = device is None
        own = communicators.of_host(COMMUNICATORS) if on_host else [communicators.of_device()]
        return rank_engine(
            resolve(),
            worker,
            policy,
            own,
            device=device,
            sharded=sharded,
            threads=policy.thread_count(told.ranks_on_this_host),
            of_layouts=communicators.for_questions(),
            leave=communicators.close,
        )
    require_packet_workers(workers)
    device, told = _agree(communicators, "network", process_group, config, policy, gradients_on, network)
    if told_run(network.run) is None:  # on all ranks or none
        network = replace(network, run=told.run)
    threads = policy.thread_count(told.ranks_on_this_host)
    recorder = StatsRecorder(PlainCollective.servers(workers))
    kernels = open_kernels(device, config, workers=workers, worker=worker, threads=threads, recorder=recorder)
    (exact,) = communicators.of_host(1)
    session: Session | FailoverSession
    if network.goes_on(workers):
        session = open_failover_session(
            network,
            config,
            communicators.new_store(),
            worker,
            workers,
            policy.deadline_s,
            moved=lambda: recorder.add(server_moves=1),
            lost=lambda: recorder.add(failover_losses=1),
        )
    else:
        session = network.open_session(config, worker, workers, policy.deadline_s)
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
    config: ThcConfig,
    policy: CompressionPolicy,
    gradients_on: torch.device | None,
    network: NetworkConfig | None = None,
    resolve: Callable[[], RankSettings] | None = None,
) -> tuple[torch.device | None, Introductions]:
    """Return device_of()'s result, and the ranks' introductions.

    One exchange compares the settings, of which `engine` is one, and the result of `resolve`. Raises what device_of()
    and resolve() raise.
    """
    workers = process_group.size()
    device, chosen, refusal, unresolved = None, None, None, None
    try:
        device = device_of(process_group, config, policy, gradients_on, engine=engine, needs_nccl=network is None)
    except ConfigurationError as error:
        refusal = error  # sent to the other ranks, which wait for this one
    try:
        chosen = None if resolve is None else resolve().chosen
    except ConfigurationError as error:
        unresolved = error  # on all ranks, or their settings differ
    # Servers do not care where codes were made.
    kernels = "any" if network is not None else "host" if device is None else "device"
    settings = policy.shared_settings() | {"engine": engine, "kernels": str(refusal) if refusal else kernels}
    shared = {} if network is None else network.shared_settings(workers)
    everything = config.model_dump() | shared | settings
    introductions = introduce(communicators.for_questions().gather, everything, chosen)
    for failed in (refusal, unresolved):
        if failed is not None:
            raise failed
    return device, introductions


@dataclass(frozen=True)
class Kernels:
    """The tools that compress partitions. device: of kernels and residuals, whose work is on `stream`."""

    compressor: Compressor | StagedCompressor
    device: torch.device
    stream: SideStream

    @property
    def host_zeros(self) -> HostZeros:
        return pinned_zeros(self.device)

    def staging(self, gradient: Tensor, recorder: TrafficRecorder) -> Staging | None:
        """Return the way of such gradients to the kernels; None: they are there. recorder: counts copies."""
        if isinstance(self.compressor, Compressor):
            return make_staging(gradient, recorder)
        return make_device_staging(gradient, self.stream, recorder)

    def sum_here(self, exact: ExactSum, recorder: TrafficRecorder) -> ExactSum:
        """Return a sum of float32 tensors where the kernels work, from a sum of host tensors."""
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
    """Return the kernels of a device, None for host memory; raises what Compressor and GpuCompressor raise."""
    if device is None:
        return Kernels(Compressor(config, workers=workers, worker=worker, threads=threads), _CPU, SideStream(_CPU))
    return device_kernels(open_gpu_compressor(device, config, workers=workers, worker=worker), recorder)


def device_kernels(compressor: GpuCompressor, recorder: TrafficRecorder) -> Kernels:
    """Return gpu/'s kernels, for engines whose codes travel through host memory, with the engine's recorder."""
    stream = SideStream(compressor.device)
    return Kernels(StagedCompressor(compressor, stream, recorder), compressor.device, stream)


def open_gpu_compressor(
    device: torch.device, config: ThcConfig | ResolvedConfig, *, workers: int, worker: int
) -> GpuCompressor:
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

    kernels: with the transport's table. transport: moves norms, codes and sums, in host memory. exact: sums host
    tensors that travel uncompressed. questions: asked over the same communicator. recorder: the transport's too. clock:
    shared by several engines. rollback: shared by engines whose steps are one. leave: see FlatEngine.
    """
    compressor, clock = kernels.compressor, clock or WorkClock()
    rollback, residuals = rollback or Rollback(), Residuals(kernels.device)
    fingerprints = Fingerprints(compressor.resolved.identity, compressor.worker)
    tools = ServerTools(compressor, transport, fingerprints, PartitionFigures(recorder), clock, rollback)

    def prepare(layout: Layout) -> None:
        if layout.all_exact:
            return
        if compressor.resolved.error_feedback:
            layout.residual = residuals.of(layout.key, layout.size, layout.parameters)
        layout.pieces = partial(of_round, server_pieces(tools, layout.extent, layout.residual, layout.waiting))

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


_CPU = torch.device("cpu")
#: Communicators of an engine: for questions and exact sums, for codes, and for averages.
COMMUNICATORS = 3


def rank_engine(
    settings: RankSettings,
    rank: int,
    policy: CompressionPolicy,
    communicators: Sequence[Communicator],
    *,
    device: torch.device | None = None,
    sharded: bool = False,
    threads: int = 1,
    of_layouts: Asking | None = None,
    compress_alone: bool = False,
    leave: Callable[[], None] | None = None,
) -> FlatEngine:
    """Return an engine: in host memory, with a thread for each stage, or on a device.

    communicators: for this engine alone; COMMUNICATORS of host tensors, or one of tensors on the device. device: the
    engine puts everything on its own stream, so that no call waits. Deadlines are the communicator's there: NCCL's
    watchdog ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING). sharded: for a reduce-scatter. threads: of host
    kernels. of_layouts: on a device, ranks compare the first gradient of each layout over it. compress_alone: compress
    on a device even with one rank, for tests and measurements. leave: see FlatEngine.
    """
    recorder = StatsRecorder(PlainCollective.among_ranks(settings.ranks, sharded=sharded))
    clock, hint = WorkClock(), SAME_ROWS if sharded else SAME_MODEL
    fingerprints = Fingerprints(settings.identity, rank)
    questions: Questions
    prepare: Callable[[Layout], None]
    sums: ExactSum
    if device is None:
        exact, to_owners, of_owners = communicators
        questions, sums = RankAgreement((exact, settings.ranks), hint=hint), exact.sum_
        codec = RankCodec(settings, rank, _core.ThreadPool(threads) if threads > 1 else None)
        messages = RankMessages(to_owners, of_owners, recorder, settings.ranks, _CPU)
        tools = RankTools(codec, messages, fingerprints, questions, recorder, clock)
        prepare = partial(prepare_rank_pieces, tools)
    else:
        [own] = communicators
        layouts = Questions() if of_layouts is None else RankAgreement((of_layouts, settings.ranks), hint=hint)
        questions = agreement = DeviceAgreement(fingerprints, device, own, layouts)
        sums = agreement.spoiled(own.sum_)
        messages = RankMessages(own, own, recorder, settings.ranks, device)
        prepare = partial(prepare_device_pieces, DeviceTools(settings, rank, messages, agreement, recorder))
    return FlatEngine(
        policy.among_ranks(),
        _place(device, recorder),
        EngineState(rank, settings.ranks, settings.settings, recorder=recorder),
        prepare,
        fingerprints=fingerprints,
        exact=sums,
        questions=questions,
        alone=settings.ranks == 1 and (device is None or not (compress_alone or sharded)),
        clock=clock,
        leave=leave,
    )


def _place(device: torch.device | None, recorder: StatsRecorder) -> Place:
    if device is None:
        return Place(_CPU, SideStream(_CPU), in_stream=False, staging=lambda gradient: make_staging(gradient, recorder))
    stream = SideStream(device)

    def staging(gradient: Tensor) -> Staging | None:
        return None if gradient.device == device else make_device_staging(gradient, stream, recorder)

    return Place(device, stream, in_stream=True, staging=staging)
