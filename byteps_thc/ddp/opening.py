"""What a ThcState averages with: made with it, or later, where there is no process group yet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from byteps_thc._engine.door import open_engine
from byteps_thc._engine.drift_warning import DriftWarning, may_drift
from byteps_thc._engine.engine import Engine
from byteps_thc._engine.loss_scaling import LossScale
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._engine.steps import Steps
from byteps_thc._net.groups import choose_process_group
from byteps_thc._net.mesh import Levels, MeshGroups
from byteps_thc._net.replicas import Replicas
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._scheme.config import ThcConfig


@dataclass
class Averaging:
    """mesh: the two levels; None: there is one. replicas: the ranks that average their gradients."""

    mesh: MeshGroups | None
    engine: Engine
    replicas: Replicas
    steps: Steps


def open_averaging(
    where: dist.ProcessGroup | None,
    levels: Levels,
    config: ThcConfig,
    policy: CompressionPolicy,
    network: NetworkConfig | None,
    model: nn.Module | None,
    grad_scaler: LossScale | None,
    log_every: int,
    gradients_on: torch.device | None,
) -> Averaging:
    """Return what averages; collective over the ranks. gradients_on: if known; the model's device goes first.

    Other arguments and errors: as ThcState's, and ConfigurationError while there is no process group.
    """
    # Without a process group, the ranks of a mesh: they may be some of all.
    of_mesh = where is None and not isinstance(levels, str)
    group = None if of_mesh else choose_process_group(where, "ThcState")
    first = None if model is None else next(model.parameters(), None)
    device = gradients_on if first is None else first.device
    opened = open_engine(group, levels, network, config, policy, gradients_on=device)
    assert opened.replicas is not None
    steps = Steps(
        [opened.engine],
        grad_scaler,
        sees_all=opened.levels is None,  # an average that is not finite may be that of another shard
        compared=not may_drift(network, opened.workers),
        log_every=log_every,
        rank=opened.replicas.rank,
        drift_warning=DriftWarning(network, opened.workers, opened.replicas),
    )
    return Averaging(opened.levels, opened.engine, opened.replicas, steps)
