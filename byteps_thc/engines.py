"""Which engine a configuration means: THC's (pipeline/factory.py), or a baseline's."""

from __future__ import annotations

import torch.distributed as dist

from byteps_thc.baselines import BaselineConfig, BaselineEngine
from byteps_thc.config import ThcConfig
from byteps_thc.errors import ConfigurationError
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.factory import collective_engine, network_engine
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.transport.servers import NetworkConfig


def make_engine(
    process_group: dist.ProcessGroup,
    config: object,
    policy: CompressionPolicy,
    network: NetworkConfig | None = None,
) -> Engine:
    """Return a new engine: THC among the ranks or with servers (`network`), or the baseline that `config` is of.

    All ranks of the group must call this, in the same order and with the same settings. ConfigurationError when the
    settings contradict each other or those of other ranks.
    """
    if isinstance(config, ThcConfig):
        if network is not None:
            return network_engine(process_group, config, network, policy)
        return collective_engine(process_group, config, policy)
    if not isinstance(config, BaselineConfig):
        raise ConfigurationError(f"config is a {type(config).__name__}, not a ThcConfig or one of byteps_thc.baselines")
    if network is not None:
        raise ConfigurationError("servers and switches sum THC's codes only: leave `network` out for a baseline")
    return BaselineEngine(process_group, config, policy)
