"""The engine of a mesh."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from byteps_thc._engine.agreement import RankAgreement
from byteps_thc._engine.factory import flat_engine
from byteps_thc._engine.hierarchy.engine import NodeEngine
from byteps_thc._engine.hierarchy.exchange import BucketShards, ShardExchange
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.communicator import Communicator
from byteps_thc._net.groups import Communicators
from byteps_thc._net.handshake import gather_in_levels, introduce
from byteps_thc._net.mesh import MeshGroups
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._scheme.config import LOCAL_SETTINGS, ThcConfig
from byteps_thc._scheme.errors import ThcError

_CPU = torch.device("cpu")

#: Of the fast level, and of the slow one.
LevelCommunicators = tuple[Communicators, Communicators]


def level_communicators(groups: MeshGroups, policy: CompressionPolicy, *, callers: int = 0) -> LevelCommunicators:
    """Return new ones; collective. callers: see Communicators."""
    fast, slow = (Communicators(group, policy.deadline_s, callers=callers) for group in (groups.fast, groups.slow))
    return fast, slow


def network_of_shard(network: NetworkConfig | None, shards: dist.ProcessGroup) -> NetworkConfig | None:
    """Return the servers of this rank's shard: those that have the same one are a job of their own."""
    return None if network is None else replace(network, job=network.job + shards.rank())


def hierarchical_engine(
    groups: MeshGroups,
    config: ThcConfig,
    policy: CompressionPolicy,
    network: NetworkConfig | None = None,
    gradients_on: torch.device | None = None,
    communicators: LevelCommunicators | None = None,
) -> NodeEngine[BucketShards]:
    """Return an engine for two levels: exact averages in the fast one, compressed ones over the slow one; collective.

    network: shard s of a node, from 0, has the job network.job + s of its own, and nodes exchange in host memory. If
    averages may be complete without some nodes, nodes are not asked what they average. communicators: new ones of the
    levels, which end with the engine; None: its own. Other arguments:
    flat_engine's. Raises ConfigurationError that names what differs, or what flat_engine raises, here or elsewhere.
    """
    fast, slow = communicators or level_communicators(groups, policy)
    waits_for_all = network is None or not network.may_drift(groups.slow.size())
    gather = gather_in_levels(fast.for_questions().gather, slow.for_questions().gather)
    settings: dict[str, object] = {"engine": f"mesh of {groups.slow.size()} x {groups.fast.size()}"}
    settings |= {"network": network is not None} | config.model_dump(exclude={*LOCAL_SETTINGS})
    if network is not None:
        settings |= network.shared_settings(groups.slow.size())
        gradients_on = _CPU  # whose shards are exchanged in host memory
    # The inner engine knows the ranks of its shard only, and would take the whole host for them.
    threads = policy.thread_count(introduce(gather, settings | policy.shared_settings()).ranks_on_this_host)
    inner_policy = policy.model_copy(update={"threads": threads})
    own = network_of_shard(network, groups.fast)
    inner, refusal, difference = None, None, None
    try:
        inner = flat_engine(groups.slow, config, inner_policy, own, gradients_on)
        kernels = "device" if inner.in_stream else "host"
    except Exception as error:  # Triton's have no other base
        refusal, kernels = error, str(error)  # which the others, waiting for this rank, get too
    try:
        introduce(gather, {"kernels": kernels})  # a node exchanges shards in one memory
    except ThcError as error:
        difference = error
    if inner is None:
        assert refusal is not None
        raise refusal
    if difference is not None:
        inner.close()  # all have theirs by now: nobody waits for the end of a connection
        raise difference

    def leave() -> None:
        fast.close()
        slow.close()

    exchange = _exchange(groups, fast, slow, inner.device if inner.in_stream else None, waits_for_all=waits_for_all)
    return NodeEngine(inner, exchange, inner.recorder, leave)


def _exchange(
    groups: MeshGroups, fast: Communicators, slow: Communicators, device: torch.device | None, *, waits_for_all: bool
) -> ShardExchange:
    scatter: Communicator
    gathering: Communicator
    between: Communicator | None = None
    if device is None:
        scatter, gathering = fast.of_host(2)
        within: Communicator = scatter
        if waits_for_all:
            [between] = slow.of_host(1)
    else:
        scatter, gathering = fast.of_device(), fast.of_device()
        # Asked once for a layout, in the caller's thread: no connections of gloo's are needed.
        within = fast.for_questions()
        between = slow.for_questions() if waits_for_all else None
    levels: list[tuple[Communicator, int]] = [(within, groups.fast.size())]
    if between is not None:
        levels.append((between, groups.slow.size()))
    asks_once = device is not None
    return ShardExchange(groups, scatter, gathering, RankAgreement(*levels), device or _CPU, asks_once=asks_once)
