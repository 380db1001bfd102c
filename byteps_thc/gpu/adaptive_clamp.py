"""The clamp moves out where workers agree, on a device: what byteps_thc.adaptive_clamp does, with the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from byteps_thc.adaptive_clamp import ROUNDS_PER_LOOK, least_clamped
from byteps_thc.tables.clamp_steps import ClampSteps


class AdaptiveClamp:
    """Factors of the P partitions of a batch. Nothing waits for the device, and all can be captured in a CUDA graph.

    norms: float32[B], which travel: widen() writes them. sizes, blocks: coordinates and rotation blocks of the
    partitions. measured: float32[B], norms of gradients, or of averages.
    """

    def __init__(self, steps: ClampSteps, norms: Tensor, *, sizes: Sequence[int], blocks: Sequence[int]) -> None:
        device = norms.device
        self._norms, self._energies = norms, steps.energies
        self.measured = torch.zeros_like(norms)
        self._factors = torch.tensor([1.0, *steps.factors], device=device)
        self._least = torch.tensor([least_clamped(steps, size) for size in sizes], device=device).unbind(1)
        self._partitions = torch.arange(len(sizes), device=device).repeat_interleave(
            torch.tensor(blocks, device=device)
        )
        self._round = torch.full((1,), -1, dtype=torch.int64, device=device)
        self._step = torch.zeros(len(sizes), dtype=torch.int64, device=device)
        self._next = torch.zeros_like(self._step)

    def widen(self) -> None:
        """Begin a round: the norms that were measured, times the factors that the last averages were worth."""
        self._round.add_(1)
        self._step.copy_(self._next)
        torch.mul(self.measured, self._factors[self._step[self._partitions]], out=self._norms)

    def look(self, energy: Tensor, clamped: Tensor) -> None:
        """Choose the factors of the next round, if it is time; measured: of the average. Others: see DeviceBatch.

        That it is time is known on the device alone, which looks every round.
        """
        agreeing = torch.zeros_like(energy).index_add_(0, self._partitions, self.measured.double().square())
        wanted, chosen = torch.zeros_like(self._step), torch.zeros_like(self._step)
        for least in self._energies:
            wanted += agreeing > least * energy
        reached = clamped << (self._step + wanted)
        for halvings, least_of in enumerate(self._least, 1):
            chosen += (reached >= least_of) & (halvings <= wanted)
        torch.where(self._round % ROUNDS_PER_LOOK == 0, chosen, self._next, out=self._next)
