"""What a worker keeps of its gradients from step to step, by parameter name.

    state = memory.compensate(gradient, spec, compressed=True)  # state.vector is sent
    memory.keep(state, sent)                                    # sent: what the payload says of state.vector

Nothing that is kept changes before keep(), which is left out for gradients that are not finite: NaN must not stay
behind. Gradients that travel uncompressed pass through with compressed=False and sent=None.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc.baselines.codec import VectorSpec
from byteps_thc.pipeline.residuals import Residuals
from byteps_thc.pipeline.rollback import Rollback


@dataclass(frozen=True)
class Compensated:
    """A gradient on its way: vector is sent, float32; kept: what the memory needs again in keep()."""

    vector: Tensor
    kept: Mapping[str, Tensor]


class Memory(ABC):
    """What a scheme adds to gradients.

    stores: what is kept, by the name that it has in a checkpoint. rollback: of what is kept, before a step.
    """

    def __init__(self, *stores: str) -> None:
        self.stores = {name: Residuals() for name in ("residuals", *stores)}
        self.rollback = Rollback()

    @abstractmethod
    def compensate(self, gradient: Tensor, spec: VectorSpec, *, compressed: bool) -> Compensated:
        """Return what to send in place of `gradient`, which is not modified."""

    @abstractmethod
    def keep(self, state: Compensated, sent: Tensor | None) -> None:
        """Keep what was not sent; sent: None when state.vector was not compressed."""

    def _vector(self, store: str, spec: VectorSpec) -> Tensor:
        return torch.from_numpy(self.stores[store].of(spec.key, spec.size, spec.parameters))


class NoMemory(Memory):
    """Gradients are sent as they are, and what is lost is lost."""

    @override
    def compensate(self, gradient: Tensor, spec: VectorSpec, *, compressed: bool) -> Compensated:
        return Compensated(gradient, {})

    @override
    def keep(self, state: Compensated, sent: Tensor | None) -> None:
        pass


class ErrorFeedback(Memory):
    """p = g + e; e = p - sent (Karimireddy et al., ICML 2019). Uncompressed gradients are sent without e, as in THC."""

    def __init__(self) -> None:
        super().__init__()

    @override
    def compensate(self, gradient: Tensor, spec: VectorSpec, *, compressed: bool) -> Compensated:
        """Return p."""
        if not compressed:
            return Compensated(gradient, {})
        residual = self._vector("residuals", spec)
        return Compensated(gradient + residual, {"residual": residual})

    @override
    def keep(self, state: Compensated, sent: Tensor | None) -> None:
        """Update e."""
        if sent is not None:
            self.rollback.save(state.kept["residual"].numpy())
            torch.sub(state.vector, sent, out=state.kept["residual"])


class MomentumCorrection(Memory):
    """Momentum on the worker, with clipping and factor masking (Lin et al., ICLR 2018, sections 3.1 to 3.3).

        g = g * min(1, clip_norm / (sqrt(workers) * |g|))        for each parameter
        u = momentum * u + g;    v = v + u;    where v is sent: u = 0 and v = 0

    What is sent of v are coordinates as they are. An uncompressed gradient is sent as u, so that it has momentum too.
    """

    def __init__(self, momentum: float, clip_norm: float | None, workers: int) -> None:
        super().__init__("momenta")
        self._momentum = momentum
        self._clip_norm = None if clip_norm is None else clip_norm / math.sqrt(workers)

    @override
    def compensate(self, gradient: Tensor, spec: VectorSpec, *, compressed: bool) -> Compensated:
        """Return v, or u without compression."""
        momentum = self._vector("momenta", spec)
        u = (momentum * self._momentum).add_(self._clipped(gradient, spec))
        kept = {"momentum": momentum, "u": u}
        if not compressed:
            return Compensated(u, kept)
        residual = self._vector("residuals", spec)
        return Compensated(residual + u, kept | {"residual": residual})

    @override
    def keep(self, state: Compensated, sent: Tensor | None) -> None:
        """Update u and v."""
        kept = state.kept
        self.rollback.save(kept["momentum"].numpy())
        kept["momentum"].copy_(kept["u"])
        if sent is not None:
            kept["momentum"].masked_fill_(sent != 0, 0.0)
            self.rollback.save(kept["residual"].numpy())
            torch.sub(state.vector, sent, out=kept["residual"])

    def _clipped(self, gradient: Tensor, spec: VectorSpec) -> Tensor:
        if self._clip_norm is None:
            return gradient
        clipped = gradient.clone()
        for part in spec.slices:
            norm = torch.linalg.vector_norm(gradient[part])
            clipped[part] *= (self._clip_norm / norm).clamp(max=1.0)
        return clipped
