"""Hybrid sharding (HSDP): shards within the fast dimension of a mesh, compressed averages over the slow one."""

from typing import Unpack

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from byteps_thc._base.errors import ConfigurationError, ThcError
from byteps_thc._base.settings import describe
from byteps_thc._base.torch_private import fsdp_all_reduce_hook, remove_fsdp_all_reduce_hook
from byteps_thc._engine.door import choose_policy, choose_scheme, open_engine
from byteps_thc._engine.engine import Engine
from byteps_thc._engine.hierarchy.exchange import network_of_shard
from byteps_thc._engine.in_flight import require_not_captured
from byteps_thc._engine.parameters import apart
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.steps import LossScale
from byteps_thc._net.groups import refusals_told
from byteps_thc._net.replicas import require_same_lines
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._scheme.decoding.settings import RankKeywords
from byteps_thc.fsdp.backward import BackwardSteps, UnhookedGroups
from byteps_thc.fsdp.compressed_reduce_scatter import FsdpCompression
from byteps_thc.fsdp.parameters import (
    ParameterGroup,
    own_shard,
    parameter_groups,
    require_group_dtypes,
    total_columns,
    with_embeddings,
)


def compress_replicas(
    model: nn.Module,
    mesh: DeviceMesh,
    *,
    network: NetworkConfig | None = None,
    policy: CompressionPolicy | None = None,
    grad_scaler: LossScale | None = None,
    log_every: int = 0,
    **settings: Unpack[RankKeywords],
) -> FsdpCompression:
    """Average the shards' gradients over replicas, compressed; collective over the ranks of the mesh.

        mesh = init_device_mesh("cuda", (nodes, gpus_per_node), mesh_dim_names=("replicate", "shard"))
        fully_shard(model, mesh=mesh["shard"])
        compression = compress_replicas(model, mesh["replicate"], bits=4)

    model: a model after fully_shard() over the shard dimension, in which torch's collectives stay.
    mesh: the 1-D mesh of the dimension to compress, mesh["replicate"].
    network: a NetworkConfig of servers or a switch; default: the ranks do the summing. The replicas of shard s use the
        job network.job + s.
    policy: a CompressionPolicy; default: THC_POLICY, or its defaults.
    grad_scaler: the GradScaler of the training, default: none. Its scale must be the same on all ranks.
    log_every: steps between lines of statistics in the log of rank 0, default 0: none.
    settings: bits, down_bits, seed and partition_bytes of codes among ranks; default: THC_CONFIG, or 4 bits each way.

    With error feedback (servers) a rank keeps residuals of its own shards, 4 bytes per element. Replicas must
    begin with the same parameters, and then stay bit-identical. If `network` is loss-tolerant or has a quorum, use a
    ParameterSynchronizer. Raises the errors of compress_reduce_scatter.
    """
    groups = parameter_groups(model)
    replicas, shard = _process_group(mesh), groups[0].process_group
    with refusals_told(replicas):
        policy = choose_policy(policy, network=network, grad_scaler=grad_scaler, log_every=log_every)
        scheme = choose_scheme(network, settings)
        require_group_dtypes(groups, policy)
        policy = with_embeddings(policy, groups, shard.rank() + replicas.rank())
        _require_crossing(shard, replicas)
        splits = [parameter.splits for group in groups for parameter in group.parameters]
        if any(splits) or any(group.process_group is not shard for group in groups):
            raise ConfigurationError(
                "compress_replicas() supports neither tensor parallelism nor modules with a mesh of their own: shard "
                "over all data-parallel ranks, and call byteps_thc.fsdp.compress(model)"
            )
        if any(fsdp_all_reduce_hook(group.source) is not None for group in groups):
            raise ConfigurationError("the model has an all-reduce hook already: close() its handle first")
    if isinstance(scheme, NetworkConfig):
        scheme = network_of_shard(scheme, shard)
    opened = open_engine(
        replicas,
        None,
        scheme,
        policy,
        gradients_on=groups[0].source.device,
        grad_scaler=grad_scaler,
        log_every=log_every,
        logs_once=True,  # only one of the first replicas of all shards
    )
    engine, same_shards = opened.engine, opened.replicas
    assert same_shards is not None
    lines = [f"shard {shard.rank()} of {shard.size()}"]  # torch sorts ranks, whatever the mesh's order
    lines += [f"{parameter} in module {group.name!r}" for group in groups for parameter in group.parameters]
    try:
        require_same_lines(same_shards, lines, "parameters")
    except ThcError:
        engine.close()
        raise
    refused = "nothing would average their gradients over the replicas"
    unhooked = UnhookedGroups(model, groups, "compress_replicas", refused=refused)
    backward_steps = BackwardSteps(opened.steps, unhooked.begin_step)
    for group in groups:
        group.module.set_all_reduce_hook(_ReplicaAverage(group, engine, backward_steps, policy))

    def uninstall() -> None:
        for group in groups:
            remove_fsdp_all_reduce_hook(group.source)

    return FsdpCompression(
        opened,
        sizes={
            parameter.name: parameter.shard_elements(shard.rank()) * (2 if group.gradient_dtype.is_complex else 1)
            for group in groups
            for parameter in group.parameters
        },
        scope=f"shard{shard.rank()}of{shard.size()}",
        uninstall=uninstall,
        replicas=same_shards,
    )


class _ReplicaAverage:
    """The all-reduce hook of a parameter group: averages its reduced shard over the replicas, in place."""

    def __init__(self, group: ParameterGroup, engine: Engine, steps: BackwardSteps, policy: CompressionPolicy) -> None:
        self._group, self._engine, self._steps, self._policy = group, engine, steps, policy

    def __call__(self, shard: Tensor) -> None:
        require_not_captured(shard)
        self._steps.begin(self._group.name)
        trained = self._group.trained()
        if shard.numel() != total_columns(trained):
            self._group.warn_of_unused()
        parts = apart(own_shard(self._group, trained, shard, self._policy), self._policy)
        for average in [self._engine.all_reduce(part) for part in parts]:
            average.wait()


def _process_group(mesh: object) -> dist.ProcessGroup:
    if not isinstance(mesh, DeviceMesh):
        raise ConfigurationError(f'the second argument is the mesh, not {describe(mesh)}: pass mesh["replicate"]')
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names or ()
        example = f"mesh[{names[0]!r}]" if names else 'mesh["replicate"], of a mesh with mesh_dim_names'
        raise ConfigurationError(f"the mesh has dimensions {names}: give the one to compress, {example}")
    return mesh.get_group()


def _require_crossing(shards: dist.ProcessGroup, replicas: dist.ProcessGroup) -> None:
    both = set(dist.get_process_group_ranks(shards)) & set(dist.get_process_group_ranks(replicas))
    if both != {dist.get_rank()}:
        raise ConfigurationError(
            f"ranks {sorted(both)} are shards and replicas of one another: the model must be sharded over the other "
            "dimension of the mesh"
        )
