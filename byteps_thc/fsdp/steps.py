"""Optimizer steps, as seen from the gradients: a backward pass that reduces any is a step."""

from __future__ import annotations

from typing import Protocol

import torch

from byteps_thc.statistics import CompressionStats, RankZeroLog


class SteppedEngine(Protocol):
    """What of an engine is needed here."""

    def start_step(self) -> None:
        """Begin a step."""

    def scale_residuals(self, factor: float) -> None:
        """Gradients come in another unit from now on."""

    def statistics(self) -> CompressionStats:
        """Return the figures."""


class LossScale(Protocol):
    """torch.amp.GradScaler, or what has its get_scale()."""

    def get_scale(self) -> float:
        """Return the factor of the gradients."""


class BackwardSteps:
    """Begins a step of the engine with the first gradient of every backward pass.

    grad_scaler: residuals are in units of scaled gradients; when its scale has changed, they are rescaled.
    """

    def __init__(self, engine: SteppedEngine, grad_scaler: LossScale | None, log: RankZeroLog) -> None:
        self._engine = engine
        self._grad_scaler = grad_scaler
        self._log = log
        self._under_way = False
        #: of the residuals; None: no step yet, or no scaler
        self.loss_scale: float | None = None

    def begin(self) -> None:
        """Call before every gradient, within the backward pass."""
        if self._under_way:
            return
        self._under_way = True
        torch.autograd.Variable._execution_engine.queue_callback(self._end)
        self._rescale()
        self._engine.start_step()

    def _end(self) -> None:
        self._under_way = False
        self._log.update(self._engine.statistics())

    def _rescale(self) -> None:
        if self._grad_scaler is None:
            return
        scale = self._grad_scaler.get_scale()
        if self.loss_scale is not None and scale != self.loss_scale:
            self._engine.scale_residuals(scale / self.loss_scale)
        self.loss_scale = scale
