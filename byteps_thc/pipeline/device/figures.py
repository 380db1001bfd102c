"""Figures that lie in device memory until somebody asks."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from byteps_thc.pipeline.device.piece import DevicePiece
from byteps_thc.pipeline.statistics import StatsRecorder


class DeviceFigures:
    """Brings what quantization did in the current step from the pieces to the recorder, once."""

    def __init__(self, recorder: StatsRecorder) -> None:
        self._recorder = recorder
        self._encoded: dict[DevicePiece, None] = {}

    def start_step(self) -> None:
        """Forget the pieces of the step before, whose figures nobody has read."""
        self._encoded.clear()

    def add(self, pieces: Iterable[DevicePiece]) -> None:
        """Note pieces that were encoded; one that comes again before read() counts once, with its last figures."""
        self._encoded |= dict.fromkeys(pieces)

    def read(self) -> None:
        """Report them; waits for the device."""
        pieces, self._encoded = [*self._encoded], {}
        if not pieces:
            return
        figures = [
            torch.cat([part.clamped.double(), part.energy, part.keep.double()])
            for part in (piece.partition for piece in pieces)
        ]
        for piece, (clamped, energy, keep) in zip(pieces, torch.stack(figures).tolist(), strict=True):
            self._recorder.add_quantization(
                coordinates=piece.partition.coordinates,
                clamped=int(clamped),
                energy=energy,
                lost_energy=0.0 if keep and piece.partition.residual is not None else None,
            )
