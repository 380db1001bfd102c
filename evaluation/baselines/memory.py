"""State of a worker's gradients from step to step, by the vector's key.

    state = memory.compensate(gradient, spec)  # state.vector is sent
    memory.keep(state, sent)                   # sent: state.vector as receivers decode the payload

Nothing that is kept changes before keep().
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from baselines.codec import VectorSpec


@dataclass(frozen=True)
class Compensated:
    """A gradient on its way: vector is sent, float32; kept: the memory's own state until keep()."""

    vector: Tensor
    kept: Mapping[str, Tensor]


class Memory(ABC):
    """A scheme's correction of gradients."""

    @abstractmethod
    def compensate(self, gradient: Tensor, spec: VectorSpec) -> Compensated:
        """Return the vector to send in place of `gradient`, which is not modified."""

    @abstractmethod
    def keep(self, state: Compensated, sent: Tensor) -> None:
        """Keep the unsent part."""


class NoMemory(Memory):
    """Gradients are sent as they are, and losses are never made up."""

    @override
    def compensate(self, gradient: Tensor, spec: VectorSpec) -> Compensated:
        return Compensated(gradient, {})

    @override
    def keep(self, state: Compensated, sent: Tensor) -> None:
        pass


class _Residuals(dict[str, Tensor]):
    def of(self, spec: VectorSpec) -> Tensor:
        """Return the vector's own, zeros at first."""
        return self.setdefault(spec.key, torch.zeros(spec.size))


class ErrorFeedback(Memory):
    """p = g + e; e = p - sent (Karimireddy et al., ICML 2019)."""

    def __init__(self) -> None:
        self.residuals = _Residuals()

    @override
    def compensate(self, gradient: Tensor, spec: VectorSpec) -> Compensated:
        """Return p."""
        residual = self.residuals.of(spec)
        return Compensated(gradient + residual, {"residual": residual})

    @override
    def keep(self, state: Compensated, sent: Tensor) -> None:
        """Update e."""
        torch.sub(state.vector, sent, out=state.kept["residual"])


class MomentumCorrection(Memory):
    """Momentum on the worker, with clipping and factor masking (Lin et al., ICLR 2018, sections 3.1 to 3.3).

        g = g * min(1, clip_norm / (sqrt(workers) * |g|))        for each parameter
        u = momentum * u + g;    v = v + u;    where v is sent: u = 0 and v = 0

    Sent coordinates of v are exact.
    """

    def __init__(self, momentum: float, clip_norm: float | None, workers: int) -> None:
        self.residuals, self.momenta = _Residuals(), _Residuals()
        self._momentum = momentum
        self._clip_norm = None if clip_norm is None else clip_norm / math.sqrt(workers)

    @override
    def compensate(self, gradient: Tensor, spec: VectorSpec) -> Compensated:
        """Return v."""
        momentum, residual = self.momenta.of(spec), self.residuals.of(spec)
        u = (momentum * self._momentum).add_(self._clipped(gradient, spec))
        return Compensated(residual + u, {"momentum": momentum, "u": u, "residual": residual})

    @override
    def keep(self, state: Compensated, sent: Tensor) -> None:
        """Update u and v."""
        kept = state.kept
        kept["momentum"].copy_(kept["u"]).masked_fill_(sent != 0, 0.0)
        torch.sub(state.vector, sent, out=kept["residual"])

    def _clipped(self, gradient: Tensor, spec: VectorSpec) -> Tensor:
        if self._clip_norm is None:
            return gradient
        clipped = gradient.clone()
        for part in spec.slices:
            norm = torch.linalg.vector_norm(gradient[part])
            clipped[part] *= (self._clip_norm / norm).clamp(max=1.0)
        return clipped
