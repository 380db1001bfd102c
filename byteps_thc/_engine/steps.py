"""Steps of an optimizer for all front ends: log lines, warnings, loss scale, and start_step() of the engines."""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._engine.engine import Engine
from byteps_thc._engine.statistics import CompressionStats
from byteps_thc._net.replicas import Replicas
from byteps_thc._net.servers import NetworkConfig

#: Steps after which a missing ParameterSynchronizer is worth a warning.
PATIENCE_STEPS = 1000

_logger = logging.getLogger("byteps_thc")


class Steps:
    """Begins the steps of engines that work for one model.

    grad_scaler, sees_all: see LossScaling. log_every: steps between log lines of rank 0; 0: none. network: of `workers`
    workers; if they may get different averages, rank 0 warns once unless parameters are synchronized. replicas: the
    ranks that average; None without a process group. statistics: of all engines; None: of the only one.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        grad_scaler: "LossScale | None",
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
        #: steps begun, including those before a checkpoint
        self.count = 0

    def begin(self) -> None:
        self.log()  # residuals as they are, before a new scale
        self.scaling.begin_backward()
        self.start()

    def start(self) -> None:
        """Begin a step whose backward passes the caller reports to scaling.begin_backward()."""
        self.log()
        self.count += 1
        self._begun += 1
        if self._watches_drift and self._begun > PATIENCE_STEPS:
            self._warn_of_drift()
        for engine in self._engines:
            engine.start_step()

    def log(self) -> None:
        """Log the last step if it is due; only then are statistics taken, which are not free."""
        if self._log_every and self.count != self._logged and self.count % self._log_every == 0:
            self._logged = self.count
            _logger.info("%s", self._statistics())

    def _warn_of_drift(self) -> None:
        self._watches_drift = False
        if self._replicas is None or not self._replicas.synchronized:
            _logger.warning(
                "loss_tolerant or a quorum gives ranks different averages, so that their parameters drift apart, and "
                "nothing has synchronised them in %d steps: use a byteps_thc.ParameterSynchronizer, or call "
                "byteps_thc.synchronize_parameters() every epoch",
                PATIENCE_STEPS,
            )


class LossScale(Protocol):
    def get_scale(self) -> float:
        """Return the factor of the gradients."""


class LossScaling:
    """Keeps the residuals of engines in step with a GradScaler.

    scaler: None or disabled: nothing happens. sees_all: the engines see all averages that the scaler sees; otherwise,
    as with shards, a smaller scale, too, means a skipped step. compared: all workers must have the same scale, unless
    replicas may drift (ParameterSynchronizer).
    """

    def __init__(
        self, scaler: LossScale | None, engines: Sequence[Engine], *, sees_all: bool = True, compared: bool = True
    ) -> None:
        self._scaler = scaler
        self._engines = engines
        self._sees_all, self._compared = sees_all, compared
        self._told: float | None = None  # compared by the engines
        self._update: object = None  # the scaler's last update()
        #: scale of the residuals; None: no step yet, or no scaler
        self.scale: float | None = None

    @property
    def enabled(self) -> bool:
        enabled = getattr(self._scaler, "is_enabled", None)
        return self._scaler is not None and (enabled is None or bool(enabled()))

    def begin_backward(self) -> None:
        """Call before Engine.start_step().

        Averages of several backward passes between two updates of the scaler are kept or dropped together.
        """
        if self._scaler is None or not self.enabled:
            return
        self.undo_skipped_step()
        # update() replaces it. Scalers without it count as updated after every backward pass.
        update = getattr(self._scaler, "_per_optimizer_states", None)
        if update is None or update is not self._update:
            self._update = update
            for engine in self._engines:
                engine.protect_step()
        scale = self._scaler.get_scale()
        if self.scale is not None and scale != self.scale:
            for engine in self._engines:
                engine.scale_residuals(scale / self.scale)
        if self._compared and scale != self._told:
            for engine in self._engines:
                engine.use_loss_scale(scale)
            self._told = scale
        self.scale = scale

    def undo_skipped_step(self) -> None:
        """Restore residuals if the scaler has skipped the last step. Call between steps, before saving them."""
        if self._scaler is None or not self.enabled or self._sees_all:
            return
        if self.scale is not None and self._scaler.get_scale() < self.scale:
            for engine in self._engines:
                engine.restore_residuals()


def saved_scale(scale: object) -> float | None:
    """Return the loss scale of a state; ConfigurationError if it is invalid."""
    if scale is None:
        return None
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:  # NaN neither
        raise ConfigurationError(
            f"state is damaged: its loss_scale is {scale!r}, not a positive number or None; load the checkpoint again, "
            "or an earlier one"
        )
    return float(scale)
