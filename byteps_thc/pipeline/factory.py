"""The engines on each transport: among the ranks, on a device or in host memory, or with servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from byteps_thc.config import LOCAL_SETTINGS, ThcConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.agreement import SAME_MODEL, SAME_ROWS, Questions, RankAgreement
from byteps_thc.pipeline.device.choice import device_of
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.flat_engine import FlatEngine
from byteps_thc.pipeline.kernels import open_kernels
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.ranks.engine import COMMUNICATORS, device_rank_engine, rank_engine
from byteps_thc.pipeline.statistics import StatsRecorder
from byteps_thc.pipeline.thc_engines import host_engine
from byteps_thc.rank_settings import RankSettings
from byteps_thc.transport.communicator import Communicator, Waitable
from byteps_thc.transport.ending import collect_forgotten
from byteps_thc.transport.failover.opening import open_failover_session
from byteps_thc.transport.groups import Communicators
from byteps_thc.transport.handshake import Introductions, introduce
from byteps_thc.transport.ignored_settings import warn_of_ignored_bits
from byteps_thc.transport.recorder import PlainCollective
from byteps_thc.transport.run import told_run
from byteps_thc.transport.servers import NetworkConfig, PushSession, ServersTransport
from byteps_thc.transport.transport import Transport
from byteps_thc.worker_limits import require_packet_workers

#: Bytes of gradient in a piece among ranks at most, unless ThcConfig.partition_bytes is given: DDP's buckets of 25 MiB,
#: which their last parameter may make larger, are three pieces, so that stages of one bucket overlap.
_PIECE_BYTES = 9 << 20


def _among_ranks(config: ThcConfig) -> ThcConfig:
    given = "partition_bytes" in config.model_fields_set
    return config if given else config.model_copy(update={"partition_bytes": _PIECE_BYTES})


def collective_engine(
    process_group: dist.ProcessGroup,
    config: ThcConfig,
    policy: CompressionPolicy,
    gradients_on: torch.device | None = None,
    communicators: Communicators | None = None,
) -> FlatEngine:
    """Return an engine for a process group whose ranks (gloo or NCCL) are the servers too; collective.

    Pieces have _PIECE_BYTES of gradient at most unless config says something else. gradients_on: where gradients will
    be, if that is known; see CompressionPolicy.kernels. communicators: see make_engine. ConfigurationError when ranks
    have different settings, or kernels="device" cannot be had.
    """
    workers, worker = process_group.size(), process_group.rank()
    config = _among_ranks(config)
    communicators = communicators or Communicators(process_group, policy.deadline_s)

    def resolve() -> RankSettings:
        return RankSettings.of(config, workers)

    agreed = _agree(communicators, "collective", process_group, config, policy, gradients_on, resolve=resolve)
    return _ranks_engine(resolve(), worker, policy, communicators, agreed, sharded=False)


def row_engine(
    process_group: dist.ProcessGroup, config: ThcConfig, policy: CompressionPolicy, gradients_on: torch.device
) -> FlatEngine:
    """As collective_engine, for a reduce-scatter."""
    warn_of_ignored_bits(config, "FSDP2's reduce-scatters", process_group.rank())
    config = _among_ranks(config)
    communicators = Communicators(process_group, policy.deadline_s)

    def resolve() -> RankSettings:
        return RankSettings.of(config, process_group.size(), sharded=True)

    agreed = _agree(communicators, "reduce-scatter", process_group, config, policy, gradients_on, resolve=resolve)
    return _ranks_engine(resolve(), process_group.rank(), policy, communicators, agreed, sharded=True)


@dataclass(frozen=True)
class _Agreed:
    """What the ranks of an engine have agreed on. device: where kernels are; None: in host memory."""

    device: torch.device | None
    introductions: Introductions


def _agree(
    communicators: Communicators,
    engine: str,
    process_group: dist.ProcessGroup,
    config: ThcConfig,
    policy: CompressionPolicy,
    gradients_on: torch.device | None,
    network: NetworkConfig | None = None,
    resolve: Callable[[], RankSettings] | None = None,
) -> _Agreed:
    """Return what device_of() gives, once all ranks are known to have the same settings, which `engine` is one of.

    resolve: what must have the same result on all ranks. All of that is one exchange. Raises what device_of() and
    resolve() raise.
    """
    workers = process_group.size()
    device, chosen, refusal, unresolved = None, None, None, None
    try:
        device = device_of(process_group, config, policy, gradients_on, engine=engine, needs_nccl=network is None)
    except ConfigurationError as error:
        refusal = error  # the other ranks, which wait for this one, get it too
    try:
        chosen = None if resolve is None else resolve().chosen
    except ConfigurationError as error:
        unresolved = error  # on all ranks, or their settings differ
    # To servers it is all the same where codes come from.
    kernels = "any" if network is not None else "host" if device is None else "device"
    settings = policy.shared_settings() | {"engine": engine, "kernels": str(refusal) if refusal else kernels}
    shared = {} if network is None else network.shared_settings(workers)
    everything = config.model_dump(exclude={*LOCAL_SETTINGS}) | shared | settings
    introductions = introduce(communicators.for_questions().gather, everything, chosen)
    for failed in (refusal, unresolved):
        if failed is not None:
            raise failed
    return _Agreed(device, introductions)


def _ranks_engine(
    settings: RankSettings,
    rank: int,
    policy: CompressionPolicy,
    communicators: Communicators,
    agreed: _Agreed,
    *,
    sharded: bool,
) -> FlatEngine:
    """Return one of `communicators`, which end with it."""

    def questions(communicator: Communicator) -> Questions:
        return RankAgreement((communicator, settings.ranks), hint=SAME_ROWS if sharded else SAME_MODEL)

    if agreed.device is not None:
        return device_rank_engine(
            settings,
            rank,
            policy,
            communicators.of_device(),
            agreed.device,
            sharded=sharded,
            of_layouts=questions(communicators.for_questions()),
            leave=communicators.close,
        )
    return rank_engine(
        settings,
        rank,
        policy,
        # The operations of a communicator start in the order of its thread, the same on all ranks.
        communicators.of_host(COMMUNICATORS),
        questions,
        sharded=sharded,
        threads=policy.thread_count(agreed.introductions.ranks_on_this_host),
        leave=communicators.close,
    )


def network_engine(
    process_group: dist.ProcessGroup,
    config: ThcConfig,
    network: NetworkConfig,
    policy: CompressionPolicy,
    gradients_on: torch.device | None = None,
    communicators: Communicators | None = None,
) -> FlatEngine:
    """Return an engine for a process group whose codes thc-ps or a switch sums; collective.

    gradients_on: where gradients will be, if that is known; see CompressionPolicy.kernels. communicators: see
    make_engine. Ranks may compress on different devices: the bits are the same. Raises ConfigurationError when ranks
    have different settings, or one asks for kernels="device" that it cannot have, and what Session raises when servers
    cannot be joined.
    """
    workers, worker = process_group.size(), process_group.rank()
    require_packet_workers(workers)
    communicators = communicators or Communicators(process_group, policy.deadline_s)
    agreed = _agree(communicators, "network", process_group, config, policy, gradients_on, network)
    if told_run(network.run) is None:  # on all ranks or none
        network = replace(network, run=agreed.introductions.run)
    threads = policy.thread_count(agreed.introductions.ranks_on_this_host)
    recorder = StatsRecorder(PlainCollective.servers(workers))
    kernels = open_kernels(agreed.device, config, workers=workers, worker=worker, threads=threads, recorder=recorder)
    (exact,) = communicators.of_host(1)
    session: PushSession
    if network.goes_on(workers):
        session = open_failover_session(
            network,
            config,
            communicators.new_store(),
            worker,
            workers,
            policy.deadline_s,
            moved=recorder.add_server_move,
            lost=recorder.add_failover_loss,
        )
    else:
        session = network.open_session(config, worker, workers, policy.deadline_s)
    transport = ServersTransport(session, recorder, kernels.host_zeros)
    return host_engine(
        kernels,
        policy,
        transport=transport,
        exact=exact.sum_,
        questions=RankAgreement((exact, workers)),
        recorder=recorder,
        leave=communicators.close,
    )


def make_server_engine(
    network: NetworkConfig, config: object, policy: CompressionPolicy | None, worker: int, workers: int
) -> tuple[Engine, Transport]:
    """Return an engine for one of `workers` workers without a process group, and the transport of its norms and codes.

    It compresses on the current GPU where the policy says kernels="device", in host memory otherwise.
    Servers sum codes alone, so everything is compressed: ConfigurationError for baselines and for a policy that asks
    for warm-up, stop_step, bypass_elements or exclude. Raises what Session raises.
    """
    if not isinstance(config, ThcConfig):
        raise ConfigurationError(
            f"{type(config).__name__} does not work with servers or switches, which sum THC's codes only: baselines "
            "need a process group and no NetworkConfig"
        )
    if network.failover:
        raise ConfigurationError("failover=True needs a process group, whose ranks agree on the servers: leave it out")
    policy = policy or CompressionPolicy()
    if "bypass_elements" not in policy.model_fields_set:
        policy = policy.model_copy(update={"bypass_elements": 0})
    if policy.warmup_steps or policy.bypass_elements or policy.exclude or policy.stop_step is not None:
        raise ConfigurationError(
            "warmup_steps, stop_step, bypass_elements and exclude need a process group, which sums what is not "
            "compressed: call "
            "torch.distributed.init_process_group() before, or leave them out"
        )
    device = device_of(None, config, policy, None, engine="network", needs_nccl=False)
    threads, recorder = policy.thread_count(), StatsRecorder()
    collect_forgotten()  # which may be in the same job
    kernels = open_kernels(device, config, workers=workers, worker=worker, threads=threads, recorder=recorder)
    session = network.open_session(config, worker, workers, policy.deadline_s)
    transport = ServersTransport(session, recorder, kernels.host_zeros)
    engine = host_engine(
        kernels, policy, transport=transport, exact=_no_exact_sum, questions=Questions(), recorder=recorder
    )
    return engine, transport


def _no_exact_sum(tensor: Tensor) -> Waitable:
    raise ConfigurationError(f"{tensor.numel()} elements would travel uncompressed, which needs a process group")
