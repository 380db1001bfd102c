"""A piece, or partition of a gradient, whose codes servers or a switch add; a Transfer does the steps in brackets:

measure -> [norms travel] -> encode -> [codes travel, sums come back] -> decode
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from byteps_thc._base.arrays import F32
from byteps_thc._engine.adding.staged_compressor import StagedCompressor
from byteps_thc._engine.agreement import Questions
from byteps_thc._engine.exact import ExactTools, Question, UncompressedPiece
from byteps_thc._engine.fingerprint import Fingerprints, NormMessage
from byteps_thc._engine.layout import Extent, Layout, identity_of, index_of
from byteps_thc._engine.piece import Piece, Pieces
from byteps_thc._engine.statistics import StatsRecorder, WorkClock
from byteps_thc._net.communicator import Waitable
from byteps_thc._net.transport import Transport
from byteps_thc._scheme.adding.compressor import Compressor
from byteps_thc._scheme.shares import random_key

#: Kernels of pieces, in host memory or on a device.
PieceCompressor = Compressor | StagedCompressor


@dataclass(frozen=True)
class ServerTools:
    """Shared by the gradients of an engine."""

    compressor: PieceCompressor
    transport: Transport
    recorder: StatsRecorder
    fingerprints: Fingerprints
    clock: WorkClock


class ServerPiece(Piece):
    """A partition of a gradient.

    residual: of the partition, where the kernels work; None without error feedback. opens: exact values of the
    gradient, if this piece is the first. closes: likewise of the last.
    """

    opens: "ExactColumns | None" = None
    closes: "ExactColumns | None" = None

    def __init__(self, tools: ServerTools, extent: Extent, span: slice, residual: Tensor | None = None) -> None:
        self._compressor = compressor = tools.compressor
        coordinates, plan = span.stop - span.start, extent.plan.within(span)
        norms, padded = compressor.sizes(coordinates, plan)
        name = extent.name(0, span)
        self._tools, self._span = tools, span
        self._transfer = tools.transport.new_transfer(name, tools.transport.compared_words + norms, padded)
        self._norms: F32 = np.zeros(norms, np.float32)
        self._partition: Any = compressor.partition(  # the compressor's own kind
            name, coordinates, plan=plan, residual=residual, norms=self._norms, codes=self._transfer.codes
        )
        derived = f"{random_key(name)} {norms} {padded}"
        known = tools.fingerprints.of(*identity_of(extent, [name], span, derived, whole=False))
        self._message = NormMessage(tools.fingerprints, known, norms, tools.transport.compared_words)

    @override
    def measure(self, gradient: Tensor, round: int) -> None:
        if self.opens is not None:
            self.opens.take(gradient)
        with self._tools.clock.timed(self._tools.recorder, "encode_ms"):
            self._compressor.measure(self._partition, gradient[self._span], round=round)
            self._message.write(round, self._norms)
        self._transfer.send_norms(self._message.sent)

    @override
    def encode(self) -> None:
        recorder, partition = self._tools.recorder, self._partition
        received = self._transfer.wait_norms()
        with self._tools.clock.timed(recorder, "encode_ms"):
            self._quantize(self._message.take(received))
        self._transfer.send_codes()
        recorder.add_quantization(
            coordinates=partition.coordinates,
            clamped=partition.clamped,
            energy=partition.energy,
            # The engine measures the residual on demand.
            lost_energy=0.0 if partition.residual_kept else None,
        )
        if self.opens is not None:
            self.opens.send()

    def _quantize(self, max_norms: F32) -> None:
        self._compressor.encode(self._partition, max_norms)

    @override
    def sum(self) -> None:
        """Do nothing: the servers sum."""

    @override
    def decode(self, out: Tensor) -> None:
        tools = self._tools
        self._transfer.wait_sums()
        self._message.digest = self._transfer.digest()
        with tools.clock.timed(tools.recorder, "decode_ms"):
            self._compressor.decode(
                self._partition,
                *self._transfer.aggregate(),
                out[self._span],
                codes_per_chunk=tools.transport.codes_per_chunk,
            )
        if self.closes is not None:
            self.closes.put_back(out)


class ExactColumns:
    """The exact values of gradients of a layout, whose sum starts once no worker can have another gradient."""

    def __init__(self, tools: ExactTools, layout: Layout) -> None:
        self._exact = tools
        self._index, self._cleared = index_of(layout.exact, tools.device), index_of(layout.cleared, tools.device)
        self._values = torch.zeros(layout.uncompressed, device=tools.device)
        self._work: Waitable

    def take(self, gradient: Tensor) -> None:
        """Take out exact values, and set them and padding to zero."""
        if self._index is not None:
            self._values.copy_(gradient.index_select(0, self._index))
        if self._cleared is not None:
            gradient.index_fill_(0, self._cleared, 0.0)

    def send(self) -> None:
        if self._index is not None:
            self._exact.recorder.add_collective(2 * self._values.nbytes, self._exact.workers)
            self._work = self._exact.sum(self._values)

    def put_back(self, out: Tensor) -> None:
        if self._index is not None:
            self._work.wait()
            out.index_copy_(0, self._index, self._values.div_(self._exact.divisor).to(out.dtype))


def in_rounds(pieces: Sequence[ServerPiece], layout: Layout, exact: ExactTools, questions: Questions) -> Pieces:
    """Return the pieces of gradients of a layout. pieces: of compressed rounds, empty if the layout has none."""
    if pieces:
        pieces[0].opens = pieces[-1].closes = ExactColumns(exact, layout)
    question = Question(questions, layout.contents, layout.size, layout.dtype, compress=False)
    return lambda compress: pieces if compress else [UncompressedPiece(exact, question)]
