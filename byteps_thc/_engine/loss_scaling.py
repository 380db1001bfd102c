"""What a GradScaler means for residuals: they are in units of scaled gradients, and steps that it skips never were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from byteps_thc._engine.engine import Engine
from byteps_thc._scheme.errors import ConfigurationError


class LossScale(Protocol):
    """torch.amp.GradScaler, or what has its get_scale()."""

    def get_scale(self) -> float:
        """Return the factor of the gradients."""


class LossScaling:
    """Keeps the residuals of engines in step with a GradScaler.

    scaler: None, or one that is not enabled: nothing happens. sees_all: whether the engines see all averages that
    the scaler sees; otherwise, as with shards, a skipped step is known by a smaller scale, too. compared: whether all
    workers must have the same scale. Not where replicas may drift: one that was left behind by a quorum does not skip
    the step that the others skip, and its scaler is copied from rank 0 like the parameters (ParameterSynchronizer).
    """

    def __init__(
        self,
        scaler: LossScale | None,
        engines: Sequence[Engine],
        *,
        sees_all: bool = True,
        compared: bool = True,
    ) -> None:
        self._scaler = scaler
        self._engines = engines
        self._sees_all, self._compared = sees_all, compared
        self._told: float | None = None  # what the engines compare
        self._update: object = None  # the last update() of the scaler
        #: of the residuals; None: no step yet, or no scaler
        self.scale: float | None = None

    @property
    def enabled(self) -> bool:
        """Whether there is a scaler, and it does something."""
        enabled = getattr(self._scaler, "is_enabled", None)
        return self._scaler is not None and (enabled is None or bool(enabled()))

    def begin_backward(self) -> None:
        """Call before Engine.start_step().

        Averages of several backward passes between two updates of the scaler are kept or thrown away together.
        """
        if self._scaler is None or not self.enabled:
            return
        self.undo_skipped_step()
        # update() replaces it. Scalers that have none are taken to be updated after every backward pass.
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
        """Bring residuals back if the scaler has skipped the last step. Call between steps, before saving them."""
        if self._scaler is None or not self.enabled or self._sees_all:
            return
        if self.scale is not None and self._scaler.get_scale() < self.scale:
            for engine in self._engines:
                engine.restore_residuals()


def saved_scale(scale: object) -> float | None:
    """Return the loss scale of a state; ConfigurationError when it is none."""
    if scale is None:
        return None
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:  # NaN neither
        raise ConfigurationError(
            f"state is damaged: its loss_scale is {scale!r}, not a positive number or None; load the checkpoint again, "
            "or an earlier one"
        )
    return float(scale)
