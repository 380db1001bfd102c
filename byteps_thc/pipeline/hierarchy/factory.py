"""The engine of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from byteps_thc.errors import ThcError
from byteps_thc.pipeline.agreement import RankAgreement
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.flat_engine import FlatEngine
from byteps_thc.pipeline.hierarchy.bucket_shards import BucketShards
from byteps_thc.pipeline.hierarchy.engine import NodeEngine
from byteps_thc.pipeline.hierarchy.exchange import ShardExchange
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.transport.communicator import Communicator
from byteps_thc.transport.groups import Communicators
from byteps_thc.transport.handshake import Gather, gather_in_levels, introduce
from byteps_thc.transport.mesh import MeshGroups

#: Makes the engine of the slow dimension.
MakeEngine = Callable[[dist.ProcessGroup, CompressionPolicy], Engine]
#: Of the fast level, and of the slow one.
LevelCommunicators = tuple[Communicators, Communicators]


def level_communicators(groups: MeshGroups, policy: CompressionPolicy, *, callers: int = 0) -> LevelCommunicators:
    """Return new ones; collective. callers: see Communicators."""
    fast, slow = (Communicators(group, policy.deadline_s, callers=callers) for group in (groups.fast, groups.slow))
    return fast, slow


def hierarchical_engine(
    groups: MeshGroups,
    settings: Mapping[str, Any],
    policy: CompressionPolicy,
    make_inner: MakeEngine,
    *,
    waits_for_all: bool,
    communicators: LevelCommunicators | None = None,
) -> NodeEngine[BucketShards]:
    """Return a new engine for a mesh; collective over its ranks.

    settings: plain values, which all ranks must have; the policy's are compared, too. waits_for_all: False: an average
    may be complete without some nodes, which are not asked then what they average. communicators: new ones of the
    levels, which end with the engine; None: its own. ConfigurationError that names what differs, or what make_inner
    raises, here or on another rank.
    """
    fast, slow = communicators or level_communicators(groups, policy)
    shared = dict(settings) | policy.shared_settings()
    gather = gather_in_levels(fast.for_questions().gather, slow.for_questions().gather)
    # The inner engine knows the ranks of its shard only, and would take the whole host for them.
    threads = policy.thread_count(introduce(gather, shared).ranks_on_this_host)
    inner_policy = policy.model_copy(update={"threads": threads})
    inner = _agreed_inner(lambda: make_inner(groups.slow, inner_policy), gather)

    def leave() -> None:
        fast.close()
        slow.close()

    device = _stream_device(inner)
    scatter: Communicator
    gathering: Communicator
    between: Communicator | None = None
    if device is None:
        scatter, gathering = fast.of_host(2)
        within: Communicator = scatter
        device, asks_once = torch.device("cpu"), False
        if waits_for_all:
            [between] = slow.of_host(1)
    else:
        scatter, gathering = fast.of_device(), fast.of_device()
        # Asked once for a layout, in the caller's thread: no connections of gloo's are needed.
        within, asks_once = fast.for_questions(), True
        between = slow.for_questions() if waits_for_all else None
    levels: list[tuple[Communicator, int]] = [(within, groups.fast.size())]
    if between is not None:
        levels.append((between, groups.slow.size()))
    exchange = ShardExchange(groups, scatter, gathering, RankAgreement(*levels), device, asks_once=asks_once)
    return NodeEngine(inner, exchange, leave=leave)


def _agreed_inner(make: Callable[[], Engine], gather: Gather) -> Engine:
    """Return what `make` gives, once all ranks are known to have one that compresses in the same memory.

    There a node will exchange shards, and `make` asks only the ranks that have the same shard. Raises what `make`
    raises, or what introduce() does, with the settings of this rank, where another rank has not what this one has.
    gather: of all ranks.
    """
    inner, refusal, difference = None, None, None
    try:
        inner = make()
        kernels = "host" if _stream_device(inner) is None else "device"
    except Exception as error:  # Triton's have no other base
        refusal, kernels = error, str(error)  # which the others, waiting for this rank, get too
    try:
        introduce(gather, {"kernels": kernels})
    except ThcError as error:
        difference = error
    if inner is None:
        assert refusal is not None
        raise refusal
    if difference is not None:
        inner.close()  # all have theirs by now: nobody waits for the end of a connection
        raise difference
    return inner


def _stream_device(inner: Engine) -> torch.device | None:
    """Return the device on whose stream an engine works; None: threads compress in host memory."""
    return inner.device if isinstance(inner, FlatEngine) and inner.in_stream else None
