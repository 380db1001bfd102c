"""Which engine a configuration means."""

from __future__ import annotations

import torch.distributed as dist

from byteps_thc.config import ThcConfig
from byteps_thc.engines.collective import CollectiveEngine
from byteps_thc.engines.engine import Engine
from byteps_thc.engines.network import NetworkConfig, NetworkEngine
from byteps_thc.engines.policy import CompressionPolicy
from byteps_thc.errors import ConfigurationError


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
            return NetworkEngine(process_group, config, network, policy)
        return CollectiveEngine(process_group, config, policy)
    from byteps_thc.baselines import BaselineConfig, BaselineEngine  # they use the modules of this package

    if not isinstance(config, BaselineConfig):
        raise ConfigurationError(f"config is a {type(config).__name__}, not a ThcConfig or one of byteps_thc.baselines")
    if network is not None:
        raise ConfigurationError("servers and switches sum THC's codes only: leave `network` out for a baseline")
    return BaselineEngine(process_group, config, policy)
