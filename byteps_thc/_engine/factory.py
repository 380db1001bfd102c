"""The engine of a process group in one level: ranks decode each other's codes, or servers sum them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist

from byteps_thc._engine.agreement import RankAgreement
from byteps_thc._engine.device.choice import device_of
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.ranks.engine import COMMUNICATORS, rank_engine
from byteps_thc._engine.server_engine import host_engine, open_kernels
from byteps_thc._engine.statistics import StatsRecorder
from byteps_thc._net.failover.opening import open_failover_session
from byteps_thc._net.failover.session import FailoverSession
from byteps_thc._net.groups import Communicators
from byteps_thc._net.handshake import Introductions, introduce
from byteps_thc._net.recorder import PlainCollective
from byteps_thc._net.run import told_run
from byteps_thc._net.servers import NetworkConfig, ServersTransport
from byteps_thc._net.session import Session
from byteps_thc._scheme.config import LOCAL_SETTINGS, ThcConfig
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.limits import require_packet_workers
from byteps_thc._scheme.rank_settings import RankSettings

#: Bytes of gradient in a piece among ranks at most, unless ThcConfig.partition_bytes is given: DDP's buckets of 25 MiB,
#: which their last parameter may make larger, are three pieces, so that stages of one bucket overlap.
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

    network: servers or a switch that sum; None: the ranks are the servers, too. gradients_on: where gradients will be,
    if that is known; without servers, the same kind of device on all ranks. Ranks may compress on different devices for
    servers: the bits are the same. communicators: new ones of the group, which end with the engine; None: its own.
    sharded: for a reduce-scatter among the ranks. Pieces among ranks have _PIECE_BYTES of gradient at most unless
    config says something else.

    All ranks of the group must call this, in the same order and with the same settings. Raises ConfigurationError if
    ranks have different settings, or one asks for kernels="device" that it cannot have, and what Session raises if
    servers cannot be joined.
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
        agreed = _agree(communicators, kind, process_group, config, policy, gradients_on, resolve=resolve)
        # The operations of a communicator start in the order of its thread, the same on all ranks.
        on_host = agreed.device is None
        own = communicators.of_host(COMMUNICATORS) if on_host else [communicators.of_device()]
        return rank_engine(
            resolve(),
            worker,
            policy,
            own,
            device=agreed.device,
            sharded=sharded,
            threads=policy.thread_count(agreed.introductions.ranks_on_this_host),
            of_layouts=communicators.for_questions(),
            leave=communicators.close,
        )
    require_packet_workers(workers)
    agreed = _agree(communicators, "network", process_group, config, policy, gradients_on, network)
    if told_run(network.run) is None:  # on all ranks or none
        network = replace(network, run=agreed.introductions.run)
    threads = policy.thread_count(agreed.introductions.ranks_on_this_host)
    recorder = StatsRecorder(PlainCollective.servers(workers))
    kernels = open_kernels(agreed.device, config, workers=workers, worker=worker, threads=threads, recorder=recorder)
    (exact,) = communicators.of_host(1)
    session = _open_session(network, config, policy, communicators, worker, workers, recorder)
    return host_engine(
        kernels,
        policy,
        transport=ServersTransport(session, recorder, kernels.host_zeros),
        exact=exact.sum_,
        questions=RankAgreement((exact, workers)),
        recorder=recorder,
        leave=communicators.close,
    )


def _open_session(
    network: NetworkConfig,
    config: ThcConfig,
    policy: CompressionPolicy,
    communicators: Communicators,
    worker: int,
    workers: int,
    recorder: StatsRecorder,
) -> Session | FailoverSession:
    if not network.goes_on(workers):
        return network.open_session(config, worker, workers, policy.deadline_s)
    return open_failover_session(
        network,
        config,
        communicators.new_store(),
        worker,
        workers,
        policy.deadline_s,
        moved=recorder.add_server_move,
        lost=recorder.add_failover_loss,
    )


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
