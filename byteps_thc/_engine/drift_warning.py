"""Says so when replicas drift apart and nothing is done about it."""

from __future__ import annotations

import logging

from byteps_thc._net.replicas import Replicas
from byteps_thc._net.servers import NetworkConfig

#: Steps after which somebody should have made a ParameterSynchronizer.
PATIENCE_STEPS = 1000

_logger = logging.getLogger("byteps_thc")


def may_drift(network: NetworkConfig | None, workers: int) -> bool:
    """Whether ranks may get different averages. network: None: the ranks sum, and all get the same."""
    return network is not None and network.may_drift(workers)


class DriftWarning:
    """Warns once on rank 0 (logger "byteps_thc") when ranks may get different averages and have no synchroniser.

    network: as may_drift's. replicas: None: nobody can synchronise, and all ranks warn.
    """

    def __init__(self, network: NetworkConfig | None, workers: int, replicas: Replicas | None) -> None:
        first = replicas is None or replicas.is_root
        self._watching = may_drift(network, workers) and first
        self._replicas = replicas
        self._steps = 0

    def step_began(self) -> None:
        """Count a step."""
        if not self._watching:
            return
        self._steps += 1
        if self._steps <= PATIENCE_STEPS:
            return
        self._watching = False
        if self._replicas is None or not self._replicas.synchronized:
            _logger.warning(
                "loss_tolerant or a quorum gives ranks different averages, so that their parameters drift apart, and "
                "nothing has synchronised them in %d steps: use a byteps_thc.ParameterSynchronizer, or call "
                "byteps_thc.synchronize_parameters() every epoch",
                PATIENCE_STEPS,
            )
