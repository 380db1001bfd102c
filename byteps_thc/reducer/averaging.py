"""Who averages the tensors of a ThcReducer: the ranks of a process group in one level or two, or servers."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from byteps_thc.config import ThcConfig
from byteps_thc.engines import find_levels, make_engine, make_hierarchical_engine
from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.factory import make_server_engine
from byteps_thc.pipeline.hierarchy.factory import level_communicators
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.reducer.agreement import Agreement, LevelsAgreement, NoAgreement, RanksAgreement, ServersAgreement
from byteps_thc.transport.groups import Communicators, choose_process_group
from byteps_thc.transport.mesh import MeshGroups, MeshReplicas, mesh_groups, require_mesh
from byteps_thc.transport.nodes import Nodes, require_nodes
from byteps_thc.transport.replicas import RankReplicas, Replicas
from byteps_thc.transport.servers import NetworkConfig


@dataclass(frozen=True)
class Averaging:
    """What a reducer works with. replicas: the ranks; None without a process group. levels: None: there is one.

    workers: those that compress: ranks, or nodes.
    """

    engine: Engine
    agreement: Agreement
    replicas: Replicas | None
    levels: MeshGroups | None
    workers: int


@dataclass(frozen=True)
class Place:
    """Where a ThcReducer averages, as its arguments say."""

    where: dist.ProcessGroup | NetworkConfig | None
    mesh: DeviceMesh | None
    dim: str | None
    nodes: Nodes
    worker: int | None
    workers: int | None

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The process group whose ranks are asked; None: they are a mesh's, or there is none.

        ConfigurationError that says what to write when it is not one.
        """
        if self.mesh is not None or (self._network is not None and dist.group.WORLD is None):
            return None
        return choose_process_group(None if self._network is not None else self.where, "ThcReducer")

    @property
    def _network(self) -> NetworkConfig | None:
        return self.where if isinstance(self.where, NetworkConfig) else None

    def check(self) -> None:
        """ConfigurationError for arguments that contradict each other; asks nobody."""
        require_mesh(self.mesh, self.dim)
        require_nodes(self.nodes, mesh_is_given=self.mesh is not None)
        if self.mesh is not None and self._network is None and self.where is not None:
            raise ConfigurationError(
                "a process group and a mesh contradict each other: leave one of them out, ThcReducer(None, "
                "mesh=..., dim=...)"
            )
        if dist.group.WORLD is not None and (self.worker is not None or self.workers is not None):
            raise ConfigurationError("the process group says which worker this is: leave worker and workers out")

    def open(self, config: ThcConfig, policy: CompressionPolicy) -> Averaging:
        """Return what averages there, once it is checked; collective. Raises what ThcReducer raises."""
        network, group = self._network, self.group
        if self.mesh is not None:
            return _in_levels(mesh_groups(self.mesh, self.dim, "ThcReducer"), config, policy, network)
        if group is None:
            assert network is not None
            return self._of_servers(network, config, policy)
        levels = find_levels(group, self.nodes, config, policy, network)
        if levels is not None:
            return _in_levels(levels, config, policy, None)
        communicators = Communicators(group, policy.deadline_s, callers=1 if group.size() > 1 else 0)
        engine = make_engine(group, config, policy, network, communicators=communicators)
        agreement: Agreement = NoAgreement()
        if engine.workers > 1:
            agreement = RanksAgreement(communicators.for_caller(), engine.workers)
        return Averaging(engine, agreement, RankReplicas(group, policy.deadline_s), None, engine.workers)

    def _of_servers(self, network: NetworkConfig, config: ThcConfig, policy: CompressionPolicy) -> Averaging:
        if self.worker is None or self.workers is None:
            raise ConfigurationError(
                "there is no process group: say who this is, ThcReducer(NetworkConfig(...), worker=0, workers=2), or "
                "call torch.distributed.init_process_group() before"
            )
        engine, transport = make_server_engine(network, config, policy, self.worker, self.workers)
        return Averaging(engine, ServersAgreement(transport), None, None, engine.workers)


def _in_levels(
    levels: MeshGroups, config: ThcConfig, policy: CompressionPolicy, network: NetworkConfig | None
) -> Averaging:
    communicators = level_communicators(levels, policy, callers=1)
    engine = make_hierarchical_engine(levels, config, policy, network, communicators=communicators)
    fast, slow = (level.for_caller() for level in communicators)
    agreement = LevelsAgreement(fast, slow, levels)
    return Averaging(engine, agreement, MeshReplicas(levels, policy.deadline_s), levels, levels.slow.size())
