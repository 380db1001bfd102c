"""An optimizer step as front ends see it: the log line of the one before, warnings, loss scale, the engines' turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from byteps_thc._engine.drift_warning import DriftWarning
from byteps_thc._engine.engine import Engine
from byteps_thc._engine.loss_scaling import LossScale, LossScaling
from byteps_thc._engine.statistics import CompressionStats

_logger = logging.getLogger("byteps_thc")


class Steps:
    """Begins the steps of engines that work for one model.

    grad_scaler, sees_all, compared: see LossScaling. log_every: steps from one log line of rank 0 to the next; 0: none.
    drift_warning: None: there is none. statistics: figures of all engines; None: of the only one.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        grad_scaler: LossScale | None,
        *,
        sees_all: bool = False,
        compared: bool = True,
        log_every: int,
        rank: int,
        drift_warning: DriftWarning | None = None,
        statistics: Callable[[], CompressionStats] | None = None,
    ) -> None:
        self._engines = engines
        self.scaling = LossScaling(grad_scaler, engines, sees_all=sees_all, compared=compared)
        self._drift_warning = drift_warning
        self._log_every = log_every if rank == 0 else 0
        self._logged = 0
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
        if self._drift_warning is not None:
            self._drift_warning.step_began()
        for engine in self._engines:
            engine.start_step()
