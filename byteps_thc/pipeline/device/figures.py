"""Figures that lie in device memory until somebody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from byteps_thc.pipeline.statistics import StatsRecorder

if TYPE_CHECKING:  # it needs Triton
    from byteps_thc.gpu import DeviceBatch


class DeviceFigures:
    """Brings what quantization did in the current step from the batches to the recorder, once."""

    def __init__(self, recorder: StatsRecorder) -> None:
        self._recorder = recorder
        self._encoded: dict[DeviceBatch, None] = {}

    def start_step(self) -> None:
        """Forget the batches of the step before, whose figures nobody has read."""
        self._encoded.clear()

    def add(self, batch: DeviceBatch) -> None:
        """Note a batch that was encoded; one that comes again before read() counts once, with its last figures."""
        self._encoded[batch] = None

    def read(self) -> None:
        """Report them; waits for the device."""
        batches, self._encoded = [*self._encoded], {}
        for batch in batches:
            figures = torch.stack([batch.clamped.double(), batch.energy, batch.keep.double()], 1).tolist()
            for coordinates, (clamped, energy, keep) in zip(batch.sizes, figures, strict=True):
                self._recorder.add_quantization(
                    coordinates=coordinates,
                    clamped=int(clamped),
                    energy=energy,
                    lost_energy=0.0 if keep and batch.residual is not None else None,
                )
