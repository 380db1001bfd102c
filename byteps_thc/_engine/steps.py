"""An optimizer step as front ends see it: the log line of the one before, warnings, loss scale, the engines' turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from byteps_thc._engine.engine import Engine
from byteps_thc._engine.loss_scaling import LossScale, LossScaling
from byteps_thc._engine.statistics import CompressionStats
from byteps_thc._net.replicas import Replicas
from byteps_thc._net.servers import NetworkConfig

#: Steps after which somebody should have made a ParameterSynchronizer.
PATIENCE_STEPS = 1000

_logger = logging.getLogger("byteps_thc")


class Steps:
    """Begins the steps of engines that work for one model.

    grad_scaler, sees_all: see LossScaling. log_every: steps from one log line of rank 0 to the next; 0: none. network:
    of `workers` workers; if they may get different averages, rank 0 warns once unless somebody synchronises them.
    replicas: the ranks that average; None without a process group. statistics: figures of all engines; None: of the
    only one.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        grad_scaler: LossScale | None,
        *,
        sees_all: bool = False,
        log_every: int,
        rank: int,
        network: NetworkConfig | None = None,
        workers: int = 1,
        replicas: Replicas | None = None,
        statistics: Callable[[], CompressionStats] | None = None,
    ) -> None:
        drifts = network is not None and network.may_drift(workers)
        self._engines = engines
        self.scaling = LossScaling(grad_scaler, engines, sees_all=sees_all, compared=not drifts)
        self._log_every = log_every if rank == 0 else 0
        self._logged = self._begun = 0
        self._watches_drift, self._replicas = drifts and rank == 0, replicas
        self._statistics = statistics or engines[0].statistics
        #: begun, those before a checkpoint included if load_state_dict() set it
        self.count = 0

    def begin(self) -> None:
        """Begin a step, of one backward pass."""
        self.log()  # of residuals as they are, before a new scale
        self.scaling.begin_backward()
        self._start()

    def start(self) -> None:
        """Begin a step whose backward passes scaling.begin_backward() is told of by the caller."""
        self.log()
        self._start()

    def log(self) -> None:
        """Log the step that is over, if its turn has come; statistics are not free, so they are taken only then."""
        if self._log_every and self.count != self._logged and self.count % self._log_every == 0:
            self._logged = self.count
            _logger.info("%s", self._statistics())

    def _start(self) -> None:
        self.count += 1
        self._begun += 1
        if self._watches_drift and self._begun > PATIENCE_STEPS:
            self._warn_of_drift()
        for engine in self._engines:
            engine.start_step()

    def _warn_of_drift(self) -> None:
        self._watches_drift = False
        if self._replicas is None or not self._replicas.synchronized:
            _logger.warning(
                "loss_tolerant or a quorum gives ranks different averages, so that their parameters drift apart, and "
                "nothing has synchronised them in %d steps: use a byteps_thc.ParameterSynchronizer, or call "
                "byteps_thc.synchronize_parameters() every epoch",
                PATIENCE_STEPS,
            )
