"""Who averages the tensors of a ThcReducer: the ranks of a process group in one level or two, or servers."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from byteps_thc.baselines import BaselineConfig
from byteps_thc.config import ThcConfig
from byteps_thc.engines import find_levels, make_engine, make_hierarchical_engine
from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.agreement import SAME_TENSORS, Questions, RankAgreement, ServersAgreement
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.factory import make_server_engine
from byteps_thc.pipeline.hierarchy.factory import level_communicators
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.transport.communicator import Communicator
from byteps_thc.transport.gloo import GlooCommunicator
from byteps_thc.transport.groups import Communicators, choose_process_group
from byteps_thc.transport.mesh import Levels, MeshGroups, MeshReplicas, require_levels
from byteps_thc.transport.replicas import RankReplicas, Replicas
from byteps_thc.transport.servers import NetworkConfig


@dataclass(frozen=True)
class Averaging:
    """What a reducer works with. questions: see Calls. asked: communicators for them alone, a number of ranks each.

    replicas: the ranks; None without a process group. levels: None: there is one. workers: those that compress: ranks,
    or nodes.
    """

    engine: Engine
    questions: Questions
    asked: tuple[GlooCommunicator, ...]
    replicas: Replicas | None
    levels: MeshGroups | None
    workers: int

    def leave(self) -> None:
        """End what questions are asked with."""
        for communicator in self.asked:
            communicator.close()


@dataclass(frozen=True)
class Place:
    """Where a ThcReducer averages, as its arguments say."""

    where: dist.ProcessGroup | NetworkConfig | None
    levels: Levels
    worker: int | None
    workers: int | None

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The process group whose ranks are asked; None: there is none.

        ConfigurationError that says what to write when it is not one.
        """
        if self._network is not None and dist.group.WORLD is None:
            return None
        return choose_process_group(None if self._network is not None else self.where, "ThcReducer")

    @property
    def _network(self) -> NetworkConfig | None:
        return self.where if isinstance(self.where, NetworkConfig) else None

    def check(self) -> None:
        """ConfigurationError for arguments that contradict each other; asks nobody."""
        require_levels(self.levels)
        if dist.group.WORLD is not None and (self.worker is not None or self.workers is not None):
            raise ConfigurationError("the process group says which worker this is: leave worker and workers out")

    def open(self, config: ThcConfig | BaselineConfig, policy: CompressionPolicy) -> Averaging:
        """Return what averages there, once it is checked; collective. Raises what ThcReducer raises."""
        network, group = self._network, self.group
        if group is None:
            assert network is not None
            return self._of_servers(network, config, policy)
        levels = find_levels(group, self.levels, config, policy, network)
        if levels is not None:
            return _in_levels(levels, config, policy, network)
        communicators = Communicators(group, policy.deadline_s, callers=1 if group.size() > 1 else 0)
        engine = make_engine(group, config, policy, network, communicators=communicators)
        questions, asked = Questions(), tuple[GlooCommunicator, ...]()
        if engine.workers > 1:
            communicator = communicators.for_caller()
            questions, asked = _asking((communicator, engine.workers)), (communicator,)
        return Averaging(engine, questions, asked, RankReplicas(group, policy.deadline_s), None, engine.workers)

    def _of_servers(
        self, network: NetworkConfig, config: ThcConfig | BaselineConfig, policy: CompressionPolicy
    ) -> Averaging:
        if self.worker is None or self.workers is None:
            raise ConfigurationError(
                "there is no process group: say who this is, ThcReducer(NetworkConfig(...), worker=0, workers=2), or "
                "call torch.distributed.init_process_group() before"
            )
        engine, transport = make_server_engine(network, config, policy, self.worker, self.workers)
        return Averaging(engine, ServersAgreement(transport), (), None, None, engine.workers)


def _in_levels(
    levels: MeshGroups, config: ThcConfig | BaselineConfig, policy: CompressionPolicy, network: NetworkConfig | None
) -> Averaging:
    communicators = level_communicators(levels, policy, callers=1)
    engine = make_hierarchical_engine(levels, config, policy, network, communicators=communicators)
    fast, slow = (level.for_caller() for level in communicators)
    questions = _asking((fast, levels.fast.size()), (slow, levels.slow.size()))
    return Averaging(
        engine, questions, (fast, slow), MeshReplicas(levels, policy.deadline_s), levels, levels.slow.size()
    )


def _asking(*levels: tuple[Communicator, int]) -> Questions:
    return RankAgreement(*levels, what="tensors", hint=SAME_TENSORS)
