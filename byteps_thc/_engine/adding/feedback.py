"""Error feedback: pieces with residuals."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from byteps_thc._base.arrays import F32
from byteps_thc._base.arrays import energy_of as norms_energy
from byteps_thc._engine.adding.residuals import Rollback, energy_of
from byteps_thc._engine.adding.server_piece import ServerPiece, ServerTools
from byteps_thc._engine.adding.staged_compressor import StagedPartition
from byteps_thc._engine.layout import Extent, Spans, index_of
from byteps_thc._scheme.adding.compressor import LARGEST_NORM, Partition
from byteps_thc._scheme.shares import even_spans, parts_within

#: Elements that distinguish most gradients from zeros.
_SAMPLE = 64


@dataclass(frozen=True)
class Feedback:
    """The residual of a gradient, [columns], where the kernels work.

    waiting: tensors whose residuals wait while their gradients are zero. cleared: padding and exact values, whose
    quantization error is no gradient.
    """

    residual: Tensor
    rollback: Rollback
    guard: "GrowthGuard"
    waiting: Spans = ()
    cleared: Spans = ()


class FeedbackPiece(ServerPiece):
    def __init__(self, tools: ServerTools, extent: Extent, span: slice, feedback: Feedback) -> None:
        self._residual = feedback.residual[span]
        super().__init__(tools, extent, span, self._residual)
        self._rollback, self._guard = feedback.rollback, feedback.guard
        self._waiting = [slice(*part) for part in parts_within(feedback.waiting, span)]
        self._unused: list[Tensor] = []
        self._encoded = 0
        self._cleared = index_of(parts_within(feedback.cleared, span), self._residual.device)

    @override
    def measure(self, gradient: Tensor, round: int) -> None:
        mine = gradient[self._span]
        unused = (part for part in self._waiting if not (mine[part][:_SAMPLE].any() or mine[part].any()))
        self._unused = [self._residual[part] for part in unused]
        with self._without_unused():
            super().measure(gradient, round)

    @override
    def encode(self) -> None:
        super().encode()
        self._encoded += 1
        if self._encoded % _GRADIENTS_PER_LOOK == 0:
            self._guard.look(self._partition, self._residual)

    @override
    def _quantize(self, max_norms: F32) -> None:
        self._rollback.save(self._residual)
        with self._without_unused():
            super()._quantize(max_norms)
        self._rollback.request_unless(bool((max_norms <= LARGEST_NORM).all()))

    @override
    def sum(self) -> None:
        if self._cleared is not None:
            self._residual.index_fill_(0, self._cleared, 0.0)

    @contextmanager
    def _without_unused(self) -> Iterator[None]:
        """Keep residuals of unused tensors out of the codes: DDP would drop their averages."""
        kept = [part.clone() for part in self._unused]
        for part in self._unused:
            part.zero_()
        try:
            yield
        finally:
            for part, before in zip(self._unused, kept, strict=True):
                part += before


def server_pieces(tools: ServerTools, extent: Extent, feedback: Feedback | None) -> list[ServerPiece]:
    """Return the pieces of gradients of one layout, for all rounds. feedback: None without error feedback."""
    codes = tools.compressor.resolved.codes
    spans = even_spans(extent.columns, codes.partition_coordinates, codes.rotation_block, tools.transport.servers)
    if feedback is None:
        return [ServerPiece(tools, extent, span) for span in spans]
    return [FeedbackPiece(tools, extent, span, feedback) for span in spans]


#: Gradients of a partition between two looks at its residual. A look takes about a tenth of the time of encoding.
_GRADIENTS_PER_LOOK = 16
#: Growth that warns: chance takes some tables that contract a little above 1.
OUTGROWN = 1.1

_logger = logging.getLogger("byteps_thc")


class GrowthGuard:
    """Watches the growth of the residuals of partitions (compressor.Partition).

    It warns once if a residual is larger than its input at two looks in a row: |residual|^2 after quantization against
    the energy of the maximum norms, of gradient + residual on the worker where they are largest. The table promises a
    ratio below 1 (ServerCodes.resolve()), which coordinates that are far from normal after the rotation may break.
    """

    def __init__(self) -> None:
        self._warned = self._outgrown = False  # outgrown: at the last look

    def look(self, partition: Partition | StagedPartition, residual: Tensor) -> None:
        if self._warned or not partition.residual_kept:
            return
        lost, quantized = energy_of(residual), norms_energy(partition.max_norms)
        before, self._outgrown = self._outgrown, lost > OUTGROWN * quantized
        if before and self._outgrown:
            self._warned = True
            _logger.warning(
                "the residual of %r has %.3g times the energy of the quantized gradient: error feedback diverges, and "
                "training will. Use more bits, or error_feedback=False, and the defaults of p and rotation_block",
                partition.name,
                lost / quantized if quantized else float("inf"),
            )
