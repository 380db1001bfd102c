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

    grad_scaler: residuals are in units of scaled gradients; when its scale has changed, they are rescaled. log_every:
    steps per log line of rank 0; 0: none.
    """

    def __init__(self, engine: SteppedEngine, grad_scaler: LossScale | None, log_every: int, rank: int) -> None:
        self._engine = engine
        self._grad_scaler = grad_scaler
        self._log = RankZeroLog(every=log_every, rank=rank)
        self._log_every = log_every if rank == 0 else 0
        self._backward: int | None = None  # torch's number of the backward pass of the last gradient
        self._steps = 0
        #: of the residuals; None: no step yet, or no scaler
        self.loss_scale: float | None = None

    def begin(self) -> None:
        """Call before every gradient, within the backward pass."""
        backward = torch._C._current_graph_task_id()
        if backward == self._backward:
            return
        self._backward = backward
        if self._log_every and self._steps and self._steps % self._log_every == 0:
            self._log.update(self._engine.statistics())  # of the steps before
        self._steps += 1
        self._rescale()
        self._engine.start_step()

    def _rescale(self) -> None:
        if self._grad_scaler is None:
            return
        scale = self._grad_scaler.get_scale()
        if self.loss_scale is not None and scale != self.loss_scale:
            self._engine.scale_residuals(scale / self.loss_scale)
        self.loss_scale = scale
