"""A piece of a gradient on its way to the average: the one place where gradients are encoded and decoded.

    measure -> [norms travel] -> encode -> [codes travel] -> sum -> [sums travel] -> decode

Whoever drives pieces decides when: a thread per stage (stages.py, reduce_scatter.py), or one thread that goes from
piece to piece (run_in_turn). A Transfer moves what is in brackets. Needs no torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any, Literal

import numpy as np

from byteps_thc.arrays import Gradient
from byteps_thc.compressor import LARGEST_NORM
from byteps_thc.pipeline.fingerprint import Fingerprints, NormWords, norm_words
from byteps_thc.pipeline.partitioning import partition_spans
from byteps_thc.pipeline.piece_compressor import PieceCompressor
from byteps_thc.pipeline.rollback import Rollback
from byteps_thc.pipeline.statistics import GRADIENTS_PER_LOOK, ResidualGuard, StatsRecorder
from byteps_thc.pipeline.work_clock import WorkClock
from byteps_thc.transport.transport import Transfer, Transport

#: Pieces that a stage is ahead of the next one in run_in_turn(): hides the round trips of norms and codes.
_LOOKAHEAD = 2


@dataclass(frozen=True)
class PieceTools:
    """What the pieces of an engine share. clock: entering clock.working() may wait for a turn on the CPU.

    rollback, guard: of residuals where the compressor has them.
    """

    compressor: PieceCompressor
    transport: Transport
    recorder: StatsRecorder
    clock: WorkClock
    rollback: Rollback[Any]
    guard: ResidualGuard = field(default_factory=ResidualGuard)

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """What identifies the pieces."""
        return Fingerprints(self.compressor.resolved, self.compressor.worker)

    def new_transfer(self, name: str, rows: int, columns: int) -> Transfer:
        """Return a transfer for pieces of so many rows and columns; name: see Transport."""
        blocks, padded = self.compressor.sizes(columns)
        return self.transport.new_transfer(name, norm_words(rows, blocks), padded)

    @contextmanager
    def working(self, figure: Literal["encode_ms", "decode_ms"]) -> Iterator[None]:
        """Count the block as work, and its time as that figure."""
        with self.clock.working():
            start = perf_counter()
            yield
            self.recorder.add_time(**{figure: (perf_counter() - start) * 1e3})


class Piece:
    """Some columns of a gradient, which travel together: a partition for every row, and their transfer.

    The gradient of an all-reduce has one row. That of a reduce-scatter has a row for every rank, which decodes its own.

    names: of the partitions, a random key each; the same on all workers. columns: elements of a row. residuals:
    float32[columns] for each row, read and written in place, where the kernels work; None without error feedback.
    transfer: from tools.new_transfer(), for that many rows, and nobody else's until decode() is over. label: what
    errors call it, the same on all workers. layout: as Fingerprints.of's. decoded: the row to decode.
    """

    def __init__(
        self,
        tools: PieceTools,
        transfer: Transfer,
        names: Sequence[str],
        columns: int,
        residuals: Sequence[Any] | None,
        *,
        label: str,
        layout: str = "",
        decoded: int = 0,
    ) -> None:
        blocks, _ = tools.compressor.sizes(columns)
        self._tools, self._transfer = tools, transfer
        self._words = NormWords(tools.fingerprints, names, columns, blocks, label, layout)
        self._norms = self._words.norms
        codes = transfer.codes.reshape(len(names), -1)
        self._rows = [
            tools.compressor.partition(
                name,
                columns,
                residual=None if residuals is None else residuals[row],
                norms=self._norms[row],
                codes=codes[row],
            )
            for row, name in enumerate(names)
        ]
        self._decoded = self._rows[decoded]
        self._gradients = 0

    def measure(self, gradient: Sequence[Any], round: int) -> None:
        """Begin a round with the rows of a gradient, and send their norms.

        gradient: [columns] for each row, as arrays.gradient_view makes them, or tensors on the device of the kernels;
        not to be touched until encode() is over.
        """
        compressor = self._tools.compressor
        with self._tools.working("encode_ms"):
            for partition, row in zip(self._rows, gradient, strict=True):
                compressor.measure(partition, row, round=round, bfloat16=_is_bfloat16(row))
        self._transfer.send_norms(self._words.begin(round))

    def encode(self) -> None:
        """Rotate, quantize and send the codes; keep the residuals. Waits for the maximum norms.

        InputError, on all workers, when they have measured different gradients; nothing has changed then.
        """
        tools = self._tools
        max_norms = self._words.maxima(self._transfer.wait_norms())
        if not (max_norms <= LARGEST_NORM).all():
            tools.rollback.request()
        with tools.working("encode_ms"):
            for partition, maxima in zip(self._rows, max_norms, strict=True):
                if partition.residual is not None:
                    tools.rollback.save(partition.residual)
                tools.compressor.encode(partition, maxima)
        self._transfer.send_codes()
        self._gradients += 1
        if self._gradients % GRADIENTS_PER_LOOK == 0:
            for partition in self._rows:
                tools.guard.look(partition)
        norms = self._norms.reshape(-1)
        tools.recorder.add_quantization(
            coordinates=sum(partition.coordinates for partition in self._rows),
            clamped=sum(partition.clamped for partition in self._rows),
            energy=float(np.dot(norms, norms)),
            # The engine measures it when somebody asks.
            lost_energy=0.0 if all(partition.residual_kept for partition in self._rows) else None,
        )

    def sum(self) -> None:
        """Do this worker's share of the summing, when it has one. Waits for the other workers' codes."""
        self._transfer.wait_codes()
        with self._tools.working("encode_ms"):
            self._transfer.sum()

    def decode(self, out: Any) -> None:
        """Write the average of a row to out, [columns]. Waits for the sums."""
        self._transfer.wait_sums()
        with self._tools.working("decode_ms"):
            sums, contributions = self._transfer.aggregate()
            self._tools.compressor.decode(
                self._decoded,
                sums,
                contributions,
                out,
                codes_per_chunk=self._tools.transport.codes_per_chunk,
                bfloat16=_is_bfloat16(out),
            )


@dataclass(frozen=True)
class PlacedPiece:
    """A piece, and the part of the gradient that it compresses."""

    piece: Piece
    span: slice


def make_pieces(
    tools: PieceTools, key: str, size: int, residual: Any | None, *, label: str, layout: str = ""
) -> list[PlacedPiece]:
    """Return the pieces of a gradient `key` of `size` elements.

    residual: float32[size], see Piece; None: no error feedback. label: what errors call the gradient. layout: as
    Fingerprints.of's.
    """
    placed = []
    for name, span in partition_spans(key, size, tools.compressor.config):
        columns = span.stop - span.start
        transfer = tools.new_transfer(name, 1, columns)
        part = f"elements {span.start} to {span.stop} of {size}" if columns < size else f"{size} elements"
        kept = None if residual is None else [residual[span]]
        piece = Piece(tools, transfer, [name], columns, kept, label=f"{label} ({part})", layout=layout)
        placed.append(PlacedPiece(piece, span))
    return placed


@dataclass(frozen=True)
class Passage:
    """A piece's way through one round. gradient, out: see Piece."""

    piece: Piece
    gradient: Sequence[Gradient]
    out: Gradient


def run_in_turn(tools: PieceTools, passages: Iterable[Passage], round: int) -> None:
    """Take pieces through a round, in this thread; the time in which it only waited is counted as communicate_ms.

    While some pieces' norms or codes travel, others are encoded and decoded, in an order that is the same everywhere.
    """
    measured: deque[Passage] = deque()
    encoded: deque[Passage] = deque()
    tools.clock.buffers(+1)
    try:
        for passage in passages:
            passage.piece.measure(passage.gradient, round)
            measured.append(passage)
            _go_on(measured, encoded, _LOOKAHEAD)
        while measured or encoded:
            _go_on(measured, encoded, 0)
    finally:
        tools.clock.buffers(-1)
        tools.recorder.add_time(communicate_ms=tools.clock.take_idle_ms())


def _go_on(measured: deque[Passage], encoded: deque[Passage], ahead: int) -> None:
    """Encode a piece that is more than `ahead` behind the last one measured; likewise decode one."""
    if len(measured) > ahead:
        measured[0].piece.encode()
        encoded.append(measured.popleft())
    if len(encoded) > (_LOOKAHEAD if measured else 0):
        passage = encoded.popleft()
        passage.piece.sum()
        passage.piece.decode(passage.out)


def _is_bfloat16(view: Any) -> bool:
    """gradient_view gives uint16 for bfloat16 tensors alone; a tensor says itself what it is."""
    return isinstance(view, np.ndarray) and view.dtype == np.uint16
