"""What gradients are compressed with: codes that servers add here, elsewhere (ranks/) codes that ranks decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from torch import Tensor
from typing_extensions import override

from byteps_thc.pipeline.layout import Layout
from byteps_thc.pipeline.piece import PlacedPiece, Round
from byteps_thc.pipeline.residuals import Residuals
from byteps_thc.pipeline.server_piece import ServerTools, server_pieces


class Scheme(Protocol):
    """Makes the pieces of layouts.

    measures_residuals: whether it reports their energy itself. compresses: whether it does anything to gradients.
    """

    measures_residuals: bool
    compresses: bool

    def use_loss_scale(self, scale: float) -> None:
        """Gradients are multiplied by it from now on."""

    def prepare(self, layout: Layout) -> None:
        """Set the pieces of a new layout, and its residual. Raises ConfigurationError where a residual does not fit."""

    def close(self) -> None:
        """Let threads that wait for the network go on, to their end."""


class ServerScheme(Scheme):
    """Codes that servers add. residuals: the engine's. tensor: an array of theirs as a tensor, the same memory."""

    measures_residuals = False
    compresses = True

    def __init__(
        self, tools: ServerTools, residuals: Callable[[], Residuals[Any]], tensor: Callable[[Any], Tensor]
    ) -> None:
        self._tools, self._residuals, self._tensor = tools, residuals, tensor

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._tools.fingerprints.use_loss_scale(scale)

    @override
    def prepare(self, layout: Layout) -> None:
        if layout.all_exact:
            return
        kept = None
        if self._tools.compressor.resolved.error_feedback:
            kept = self._residuals().of(layout.key, layout.size, layout.parameters)
            layout.residual = self._tensor(kept)
        layout.pieces = partial(_of_round, server_pieces(self._tools, layout.extent, kept))

    @override
    def close(self) -> None:
        self._tools.transport.close()


def _of_round(pieces: Sequence[PlacedPiece], round: Round) -> Sequence[PlacedPiece]:
    return pieces if round.compress else ()
