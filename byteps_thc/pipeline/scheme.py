"""What gradients are compressed with: THC here, the codecs of baselines/ elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor
from typing_extensions import override

from byteps_thc.device_message import Beside
from byteps_thc.pipeline.layout import Layout
from byteps_thc.pipeline.piece import GradientPieces, PieceTools
from byteps_thc.pipeline.residuals import Residuals


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


class ThcScheme(Scheme):
    """THC. residuals: the engine's. tensor: an array of their memory as a tensor, the same memory."""

    measures_residuals = False
    compresses = True

    def __init__(
        self, tools: PieceTools, residuals: Callable[[], Residuals[Any]], tensor: Callable[[Any], Tensor]
    ) -> None:
        self._tools, self._residuals, self._tensor = tools, residuals, tensor

    @override
    def use_loss_scale(self, scale: float) -> None:
        self._tools.agreement.use_loss_scale(scale)

    @override
    def prepare(self, layout: Layout) -> None:
        if layout.all_exact:
            return
        rows = None
        if self._tools.rows.resolved.error_feedback:
            kept = self._residuals().of(layout.key, layout.size, layout.parameters)
            layout.residual = self._tensor(kept)
            rows = kept.reshape(layout.rows, layout.columns)
        beside = None
        if self._tools.rows.takes_exact:
            layout.pieces_take_exact = True
            beside = Beside(layout.exact_index, layout.exact, sorted(layout.cleared))
            if layout.residual is not None and layout.clear_index is not None:
                layout.residual.index_fill_(0, layout.clear_index, 0.0)  # nobody writes there
        layout.pieces = GradientPieces(self._tools, layout.extent, rows, beside)

    @override
    def close(self) -> None:
        self._tools.transport.close()
