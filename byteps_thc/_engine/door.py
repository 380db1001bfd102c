"""The door to all engines: what arguments of front ends mean, and who averages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from byteps_thc._engine.agreement import SAME_TENSORS, Questions, RankAgreement, ServersAgreement
from byteps_thc._engine.device.choice import device_of
from byteps_thc._engine.engine import Engine
from byteps_thc._engine.factory import flat_engine
from byteps_thc._engine.hierarchy.factory import hierarchical_engine, level_communicators
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.server_engine import host_engine, open_kernels
from byteps_thc._engine.statistics import StatsRecorder, require_log_interval
from byteps_thc._engine.way_time import seconds_of_averages
from byteps_thc._net.communicator import Waitable
from byteps_thc._net.ending import collect_forgotten
from byteps_thc._net.gloo import GlooCommunicator
from byteps_thc._net.groups import Communicators
from byteps_thc._net.mesh import Levels, MeshGroups, MeshReplicas, mesh_groups
from byteps_thc._net.nodes import Slowest, WayTimes, find_nodes
from byteps_thc._net.replicas import RankReplicas, Replicas
from byteps_thc._net.servers import NetworkConfig, ServersTransport
from byteps_thc._scheme.config import ThcConfig, ThcSettings
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.gone import instead_of
from byteps_thc._scheme.settings import describe


def choose_config(config: object, settings: ThcSettings) -> ThcConfig:
    """Return `config`, or the ThcConfig of `settings`, the keyword arguments of a front end, and of $THC_CONFIG.

    config: None or a ThcConfig. Raises ConfigurationError for anything else, or for settings beside it.
    """
    for name in settings:
        if gone := instead_of(name):
            raise ConfigurationError(f"{name}: there is no such setting{gone}")
        if name in CompressionPolicy.model_fields:
            raise ConfigurationError(f"{name} is a setting of the policy: policy=CompressionPolicy({name}=...)")
    if config is None:
        return ThcConfig.from_environment(**settings)
    _require("config", config, ThcConfig, "ThcConfig(...)")
    if settings:
        raise ConfigurationError(f"{', '.join(settings)}: write settings into the ThcConfig(...) that is given")
    config = cast(ThcConfig, config)
    ThcConfig.check_environment(config)
    return config


def choose_policy(
    policy: object, *, network: object = None, grad_scaler: object = None, log_every: object = 0
) -> CompressionPolicy:
    """Return `policy`, or that of $THC_POLICY for None. ConfigurationError if one of a front end's options is wrong."""
    _require("policy", policy, CompressionPolicy, "CompressionPolicy(warmup_steps=100)")
    _require("network", network, NetworkConfig, 'NetworkConfig(["10.0.0.1"]), which has the servers\' addresses')
    if grad_scaler is not None and not hasattr(grad_scaler, "get_scale"):
        raise ConfigurationError(f"grad_scaler is {describe(grad_scaler)}: give the GradScaler of the training")
    require_log_interval(log_every)
    return CompressionPolicy.chosen(cast(CompressionPolicy | None, policy))


def _require(name: str, value: object, kind: type, example: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(f"{name} is {describe(value)}: give {example}")


@dataclass(frozen=True)
class Worker:
    """One of `workers` workers that servers know by numbers, without a process group. number: from 0."""

    number: int
    workers: int


@dataclass(frozen=True)
class Opened:
    """An engine, and who averages with it.

    levels: the two in which ranks average; None: one. replicas: the ranks that average; None without a process group.
    workers: those that compress: ranks, or nodes. questions: about each of the caller's own calls, asked over
    `communicators`.
    """

    engine: Engine
    levels: MeshGroups | None
    replicas: Replicas | None
    workers: int
    questions: Questions
    communicators: tuple[GlooCommunicator, ...] = ()

    def leave(self) -> None:
        """End what questions are asked with."""
        for communicator in self.communicators:
            communicator.close()


def open_engine(
    where: dist.ProcessGroup | Worker | None,
    levels: Levels | None,
    network: NetworkConfig | None,
    config: ThcConfig,
    policy: CompressionPolicy,
    *,
    gradients_on: torch.device | None = None,
    sharded: bool = False,
    asks: bool = False,
) -> Opened:
    """Return a new engine for all ranks of a process group, or for a worker of servers; collective.

    where: None: the ranks of the mesh in `levels`. levels: in which ranks average; None: in one, without looking for
    another way. network: servers or a switch that sum; None: the ranks do. gradients_on: where gradients will be, if
    that is known. sharded: for a reduce-scatter among the ranks, in one level. asks: the caller asks with
    Opened.questions.

    All ranks must call this, in the same order and with the same settings. Raises ConfigurationError if settings
    contradict each other or other ranks' settings, and what Session raises if servers cannot be joined.
    """
    if isinstance(where, Worker):
        assert network is not None
        return _open_worker(where, network, config, policy)
    found = None if levels is None else find_levels(where, levels, config, policy, network)
    if found is not None:
        both = level_communicators(found, policy, callers=int(asks))
        engine: Engine = hierarchical_engine(found, config, policy, network, gradients_on, both)
        opened = Opened(engine, found, MeshReplicas(found, policy.deadline_s), found.slow.size(), Questions())
        asked = [(both[0], found.fast.size()), (both[1], found.slow.size())] if asks else []
    else:
        assert where is not None
        asks = asks and where.size() > 1
        communicators = Communicators(where, policy.deadline_s, callers=int(asks))
        engine = flat_engine(where, config, policy, network, gradients_on, communicators, sharded=sharded)
        opened = Opened(engine, None, RankReplicas(where, policy.deadline_s), where.size(), Questions())
        asked = [(communicators, where.size())] if asks else []
    own = [(level.for_caller(), ranks) for level, ranks in asked]
    if not own:
        return opened
    questions = RankAgreement(*own, what="tensors", hint=SAME_TENSORS)
    return replace(opened, questions=questions, communicators=tuple(communicator for communicator, _ in own))


def _open_worker(where: Worker, network: NetworkConfig, config: ThcConfig, policy: CompressionPolicy) -> Opened:
    """Return the engine of a worker without a process group.

    It compresses on the current GPU if the policy says kernels="device", in host memory otherwise. Servers sum codes
    alone, so everything is compressed: ConfigurationError for a policy that asks for warm-up, stop_step,
    bypass_elements or exclude. Raises what Session raises.
    """
    if network.failover:
        raise ConfigurationError("failover=True needs a process group, whose ranks agree on the servers: leave it out")
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
    worker, workers = where.number, where.workers
    kernels = open_kernels(device, config, workers=workers, worker=worker, threads=threads, recorder=recorder)
    session = network.open_session(config, worker, workers, policy.deadline_s)
    transport = ServersTransport(session, recorder, kernels.host_zeros)
    engine = host_engine(
        kernels, policy, transport=transport, exact=_no_exact_sum, questions=Questions(), recorder=recorder
    )
    return Opened(engine, None, None, workers, ServersAgreement(transport))


def _no_exact_sum(tensor: Tensor) -> Waitable:
    raise ConfigurationError(f"{tensor.numel()} elements would travel uncompressed, which needs a process group")


def find_levels(
    process_group: dist.ProcessGroup | None,
    levels: Levels,
    config: ThcConfig,
    policy: CompressionPolicy,
    network: NetworkConfig | None,
) -> MeshGroups | None:
    """Return the two levels in which ranks average; None: one. Collective unless it is a mesh's; see find_nodes.

    Servers and switches average in one level, unless a mesh is given.
    """
    if not isinstance(levels, str):
        return mesh_groups(*levels, process_group)
    assert process_group is not None
    two_levels = config if network is None else None

    def measure(found: MeshGroups, slowest: Slowest) -> WayTimes:
        return time_both_ways(process_group, found, config, policy, slowest)

    return find_nodes(process_group, levels, two_levels, policy.deadline_s, measure)


def time_both_ways(
    process_group: dist.ProcessGroup,
    levels: MeshGroups,
    config: ThcConfig,
    policy: CompressionPolicy,
    slowest: Slowest,
) -> WayTimes:
    """Return how long averages take in two levels and in one, over engines of their own; collective.

    slowest: see seconds_of_averages.
    """
    always = policy.model_copy(update={"warmup_steps": 0, "stop_step": None, "bypass_elements": 0, "exclude": ()})
    flat_s, two_levels_s = seconds_of_averages(
        [
            lambda: flat_engine(process_group, config, always),
            lambda: hierarchical_engine(levels, config, always),
        ],
        slowest,
    )
    return WayTimes(two_levels_s, flat_s)
