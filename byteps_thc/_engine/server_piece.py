"""A piece, or partition of a gradient, whose codes servers or a switch add; a Transfer does the steps in brackets:

measure -> [norms travel] -> encode -> [codes travel, sums come back] -> decode
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
from torch import Tensor

from byteps_thc._engine.device.staged_compressor import StagedCompressor, StagedPartition
from byteps_thc._engine.fingerprint import Fingerprints, NormMessage
from byteps_thc._engine.layout import Extent, Piece, PlacedPiece, Round, identity_of
from byteps_thc._engine.residuals import Rollback, energy_of
from byteps_thc._engine.statistics import StatsRecorder, WorkClock
from byteps_thc._net.transport import Transport
from byteps_thc._scheme.arrays import F32
from byteps_thc._scheme.arrays import energy_of as norms_energy
from byteps_thc._scheme.compressor import LARGEST_NORM, Compressor, Partition
from byteps_thc._scheme.shares import even_spans, parts_within, random_key


@dataclass(frozen=True)
class ServerTools:
    compressor: Compressor | StagedCompressor
    transport: Transport
    fingerprints: Fingerprints
    figures: PartitionFigures
    clock: WorkClock
    rollback: Rollback


#: Elements that distinguish most gradients from zeros.
_SAMPLE = 64


class ServerPiece(Piece):
    """A partition of a gradient. residual: its whole residual, where the kernels work; None without error feedback.

    waiting: tensors (start, stop) of the gradient whose residuals wait while their gradients are zero.
    """

    def __init__(
        self,
        tools: ServerTools,
        extent: Extent,
        span: slice,
        residual: Tensor | None,
        waiting: Iterable[tuple[int, int]],
    ) -> None:
        # A StagedCompressor has the same methods.
        compressor = cast(Compressor, tools.compressor)
        coordinates, plan = span.stop - span.start, extent.plan.within(span)
        norms, padded = compressor.sizes(coordinates, plan)
        name = extent.name(0, span)
        self.span = span
        self._tools = tools
        self._transfer = tools.transport.new_transfer(name, tools.transport.compared_words + norms, padded)
        self._residual = None if residual is None else residual[span]
        self._waiting = [] if residual is None else [slice(*part) for part in parts_within(waiting, span)]
        self._unused: list[Tensor] = []
        self._norms: F32 = np.zeros(norms, np.float32)
        self._compressor = compressor
        self._partition = compressor.partition(
            name, coordinates, plan=plan, residual=self._residual, norms=self._norms, codes=self._transfer.codes
        )
        derived = f"{random_key(name)} {norms} {padded}"
        known = tools.fingerprints.of(*identity_of(extent, [name], span, derived, whole=False))
        self._message = NormMessage(tools.fingerprints, known, norms, tools.transport.compared_words)

    def measure(self, gradient: Tensor, round: int) -> None:
        [mine] = gradient
        if self._residual is not None:
            unused = (part for part in self._waiting if not (mine[part][:_SAMPLE].any() or mine[part].any()))
            self._unused = [self._residual[part] for part in unused]
        with self._tools.clock.timed(self._tools.figures.recorder, "encode_ms"), self._without_unused():
            self._compressor.measure(self._partition, mine, round=round)
            self._message.write(round, self._norms)
        self._transfer.send_norms(self._message.sent)

    def encode(self) -> None:
        tools = self._tools
        received = self._transfer.wait_norms()
        if self._residual is not None:
            tools.rollback.save(self._residual)
        with tools.clock.timed(tools.figures.recorder, "encode_ms"):
            max_norms = self._message.take(received)
            with self._without_unused():
                self._compressor.encode(self._partition, max_norms)
        tools.rollback.request_unless(bool((max_norms <= LARGEST_NORM).all()))
        self._transfer.send_codes()
        tools.figures.encoded(self._partition, self._residual)

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

    def sum(self) -> None:
        """Do nothing: the servers sum."""

    def decode(self, out: Tensor) -> None:
        tools = self._tools
        self._transfer.wait_sums()
        self._message.digest = self._transfer.digest()
        with tools.clock.timed(tools.figures.recorder, "decode_ms"):
            self._compressor.decode(
                self._partition,
                *self._transfer.aggregate(),
                out,
                codes_per_chunk=tools.transport.codes_per_chunk,
            )


def server_pieces(
    tools: ServerTools, extent: Extent, residual: Tensor | None, waiting: Sequence[tuple[int, int]] = ()
) -> list[PlacedPiece]:
    """Return the pieces of gradients of one layout, for all rounds. residual, waiting: as ServerPiece's."""
    config = tools.compressor.config
    spans = even_spans(extent.columns, config.partition_coordinates, config.rotation_block, tools.transport.servers)
    return [
        PlacedPiece(ServerPiece(tools, extent, span, residual, waiting), span, last=span.stop == extent.columns)
        for span in spans
    ]


def of_round(pieces: Sequence[PlacedPiece], round: Round) -> Sequence[PlacedPiece]:
    """Return the pieces of a gradient in a round: none if it travels uncompressed."""
    return pieces if round.compress else ()


#: Gradients of a partition between two looks at its residual. A look takes about a tenth of the time of encoding.
_GRADIENTS_PER_LOOK = 16
#: Growth that warns: chance takes some tables that contract a little above 1.
OUTGROWN = 1.1

_logger = logging.getLogger("byteps_thc")


class PartitionFigures:
    """Reports partitions (compressor.Partition) to a recorder, and watches the growth of their residuals.

    It warns once, on the logger "byteps_thc", if a residual is larger than its input at two looks in a row:
    |residual|^2 after quantization against the energy of the maximum norms, of gradient + residual on the worker where
    they are largest. The table promises a ratio of cost + clamp_cost, which ThcConfig.resolve() keeps below 1.
    Coordinates that are far from normal after the rotation may break that promise: a residual as large as gradient and
    residual were together is larger than the gradient, and larger again after the next one.
    """

    def __init__(self, recorder: StatsRecorder) -> None:
        self.recorder = recorder
        self._encoded: Counter[str] = Counter()
        self._warned = False
        self._outgrown = False  # at the last look

    def encoded(self, partition: Partition | StagedPartition, residual: Tensor | None) -> None:
        self._encoded[partition.name] += 1
        if residual is not None and self._encoded[partition.name] % _GRADIENTS_PER_LOOK == 0:
            self.look(partition, residual)
        self.recorder.add_quantization(
            coordinates=partition.coordinates,
            clamped=partition.clamped,
            energy=partition.energy,
            # The engine measures the residual on demand.
            lost_energy=0.0 if partition.residual_kept else None,
        )

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
