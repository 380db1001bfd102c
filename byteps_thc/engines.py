"""Which engine a configuration means: THC's (pipeline/factory.py), or a baseline's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist

from byteps_thc.baselines import BaselineConfig, baseline_engine
from byteps_thc.baselines.config import CodecConfig
from byteps_thc.baselines.dense import DenseConfig
from byteps_thc.config import LOCAL_SETTINGS, ThcConfig, ThcSettings
from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.factory import collective_engine, network_engine, row_engine
from byteps_thc.pipeline.flat_engine import FlatEngine
from byteps_thc.pipeline.hierarchy.factory import LevelCommunicators, hierarchical_engine
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.pipeline.statistics import require_log_interval
from byteps_thc.pipeline.way_time import seconds_of_averages
from byteps_thc.settings import describe
from byteps_thc.transport.groups import Communicators
from byteps_thc.transport.mesh import Levels, MeshGroups, mesh_groups
from byteps_thc.transport.nodes import Slowest, WayTimes, find_nodes
from byteps_thc.transport.servers import NetworkConfig

#: Arguments of earlier versions that `levels` replaces.
_LEVELS = ("mesh", "dim", "nodes")


def choose_scheme(config: object, settings: ThcSettings) -> ThcConfig | BaselineConfig:
    """Return what compresses: `config`, or the ThcConfig of `settings`, the keyword arguments of a front end, and of
    $THC_CONFIG.

    config: None, a ThcConfig or a baseline; anything else, or settings beside it, is a ConfigurationError.
    """
    for name in settings:
        if name in _LEVELS:
            raise ConfigurationError(
                f'{name}= is gone: levels="auto", "flat" or (mesh, dim) says in which levels ranks average, and '
                'compress_replicas(model, mesh["replicate"]) over which dimension'
            )
        if name in CompressionPolicy.model_fields:
            raise ConfigurationError(f"{name} is a setting of the policy: policy=CompressionPolicy({name}=...)")
    if config is None:
        return ThcConfig.from_environment(**settings)
    if not isinstance(config, ThcConfig | DenseConfig | CodecConfig):
        right = "ThcConfig(...) or one of byteps_thc.baselines, such as TopK(...)"
        raise ConfigurationError(f"config is {describe(config)}: give {right}")
    if settings:
        name = type(config).__name__
        raise ConfigurationError(f"{', '.join(settings)}: write settings into the {name}(...) that is given")
    ThcConfig.check_environment(config if isinstance(config, ThcConfig) else None, f"a {type(config).__name__}")
    return config


def choose_policy(
    policy: object, *, network: object = None, grad_scaler: object = None, log_every: object = 0
) -> CompressionPolicy:
    """Return `policy`, or the default one for None; ConfigurationError when one of a front end's options is not one."""
    _require("policy", policy, CompressionPolicy, "CompressionPolicy(warmup_steps=100)")
    _require("network", network, NetworkConfig, 'NetworkConfig(["10.0.0.1"]), which has the servers\' addresses')
    if grad_scaler is not None and not hasattr(grad_scaler, "get_scale"):
        raise ConfigurationError(f"grad_scaler is {describe(grad_scaler)}: give the GradScaler of the training")
    require_log_interval(log_every)
    return CompressionPolicy() if policy is None else cast(CompressionPolicy, policy)


def _require(name: str, value: object, kind: type, example: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(f"{name} is {describe(value)}: give {example}")


def make_engine(
    process_group: dist.ProcessGroup,
    config: ThcConfig | BaselineConfig,
    policy: CompressionPolicy,
    network: NetworkConfig | None = None,
    gradients_on: torch.device | None = None,
    communicators: Communicators | None = None,
) -> Engine:
    """Return a new engine: THC among the ranks or with servers (`network`), or the baseline that `config` is of.

    gradients_on: where gradients will be, if that is known; without servers, the same kind of device on all ranks.
    communicators: new ones of the group, which end with the engine; None: its own.
    All ranks of the group must call this, in the same order and with the same settings. ConfigurationError when the
    settings contradict each other or those of other ranks.
    """
    if isinstance(config, ThcConfig):
        if network is not None:
            return network_engine(process_group, config, network, policy, gradients_on, communicators)
        return collective_engine(process_group, config, policy, gradients_on, communicators)
    _require_no_network(config, network)
    _require_for_baseline(config, policy)
    return baseline_engine(process_group, config, policy, communicators=communicators)


def make_hierarchical_engine(
    groups: MeshGroups,
    config: ThcConfig | BaselineConfig,
    policy: CompressionPolicy,
    network: NetworkConfig | None = None,
    gradients_on: torch.device | None = None,
    communicators: LevelCommunicators | None = None,
) -> Engine:
    """As make_engine, in two levels: averages are exact in the fast one and compressed over the slow one.

    network: shard s of a node, from 0, has the job network.job + s of its own, and nodes exchange in host memory.
    communicators: new ones of the two levels, which end with the engine; None: its own.
    """
    settings: dict[str, Any] = {"engine": f"mesh of {groups.slow.size()} x {groups.fast.size()}"}
    settings |= {"scheme": type(config).__name__, "network": network is not None}
    settings |= config.model_dump(exclude={*LOCAL_SETTINGS})
    if network is not None:
        settings |= network.shared_settings(groups.slow.size())
        gradients_on = torch.device("cpu")  # whose shards are exchanged in host memory
    own = network_of_shard(network, groups.fast)
    return hierarchical_engine(
        groups,
        settings,
        policy,
        lambda slow, inner_policy: make_engine(slow, config, inner_policy, own, gradients_on),
        waits_for_all=network is None or not network.may_drift(groups.slow.size()),
        communicators=communicators,
    )


def find_levels(
    process_group: dist.ProcessGroup,
    levels: Levels,
    config: ThcConfig | BaselineConfig,
    policy: CompressionPolicy,
    network: NetworkConfig | None,
) -> MeshGroups | None:
    """Return the two levels in which ranks average; None: one. Collective unless it is a mesh's; see find_nodes.

    Servers, switches and baselines average in one level, unless a mesh is given.
    """
    if not isinstance(levels, str):
        return mesh_groups(*levels, process_group)
    two_levels = config if isinstance(config, ThcConfig) and network is None else None

    def measure(found: MeshGroups, slowest: Slowest) -> WayTimes:
        return time_both_ways(process_group, found, config, policy, slowest)

    return find_nodes(process_group, levels, two_levels, policy.deadline_s, measure)


def time_both_ways(
    process_group: dist.ProcessGroup,
    levels: MeshGroups,
    config: ThcConfig | BaselineConfig,
    policy: CompressionPolicy,
    slowest: Slowest,
) -> WayTimes:
    """Return how long averages take in two levels and in one, over engines of their own; collective.

    slowest: see seconds_of_averages.
    """
    always = policy.model_copy(update={"warmup_steps": 0, "stop_step": None, "bypass_elements": 0, "exclude": ()})
    flat_s, two_levels_s = seconds_of_averages(
        [
            lambda: make_engine(process_group, config, always),
            lambda: make_hierarchical_engine(levels, config, always),
        ],
        slowest,
    )
    return WayTimes(two_levels_s, flat_s)


def network_of_shard(network: NetworkConfig | None, shards: dist.ProcessGroup) -> NetworkConfig | None:
    """Return the servers of this rank's shard: those that have the same one are a job of their own."""
    return None if network is None else replace(network, job=network.job + shards.rank())


def _require_no_network(config: BaselineConfig, network: NetworkConfig | None) -> None:
    """ConfigurationError for a baseline with servers."""
    if network is not None:
        raise ConfigurationError(
            f"{type(config).__name__} does not work with servers or switches, which sum THC's codes only: leave "
            "`network` out, or use a ThcConfig"
        )


def _require_for_baseline(config: BaselineConfig, policy: CompressionPolicy) -> None:
    """ConfigurationError for a policy that baselines have not."""
    route = f"baselines ({type(config).__name__})"
    policy.require_host_kernels(route)
    if policy.exclude and isinstance(config, DenseConfig) and config.dtype is not None:
        raise ConfigurationError(
            f"CompressionPolicy(exclude): {type(config).__name__} sends all gradients in {config.dtype}, as torch's "
            "hooks do: omit exclude, or use another baseline or a ThcConfig"
        )


def make_row_engine(
    process_group: dist.ProcessGroup,
    config: ThcConfig | BaselineConfig,
    policy: CompressionPolicy,
    gradients_on: torch.device,
) -> FlatEngine:
    """As make_engine, for a reduce-scatter among the ranks."""
    if isinstance(config, ThcConfig):
        return row_engine(process_group, config, policy, gradients_on)
    _require_for_baseline(config, policy)
    return baseline_engine(process_group, config, policy, sharded=True)
