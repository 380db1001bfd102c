"""A piece of a gradient on its way to the average: the one place where gradients are encoded and decoded.

    measure -> [norms travel] -> encode -> [codes travel] -> sum -> [sums travel] -> decode

Drivers decide when (drivers.py): a thread per stage, one stream of a device, or one thread that goes from piece to
piece. A Transfer moves what is in brackets. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Literal, Protocol

from byteps_thc.pipeline.figures import Figures
from byteps_thc.pipeline.fingerprint import Agreement, norm_words
from byteps_thc.pipeline.partitioning import column_spans, even_spans
from byteps_thc.pipeline.piece_rows import Rows
from byteps_thc.pipeline.rollback import Rollback
from byteps_thc.pipeline.work_clock import WorkClock
from byteps_thc.transport.transport import Transport


@dataclass(frozen=True)
class Round:
    """A round of a gradient. number: the random key, the same on all workers. step: of the optimizer, from 0.
    compress: False: all of it travels exactly.
    """

    number: int
    step: int
    compress: bool


class Piece(Protocol):
    """What stages do with a piece, in this order; each is called by one thread."""

    def measure(self, gradient: Any, round: int) -> None:
        """Begin a round with the rows of a gradient, [columns] each, not to be touched until encode() is over."""

    def encode(self) -> None:
        """Send the codes, and keep what they lack.

        InputError, on all workers, when they have measured different gradients and that is known; nothing has changed
        then.
        """

    def sum(self, then: Callable[[], object] | None = None) -> None:
        """Do this worker's share of the summing, when it has one, and keep what that loses.

        Waits for the other workers' codes. then: to be done where it sums, after that.
        """

    def decode(self, out: Any) -> None:
        """Write the average of a row to out, [columns]. Waits for the sums."""


@dataclass(frozen=True)
class PlacedPiece:
    """A piece, and the columns of the gradient that it compresses. last: of the gradient."""

    piece: Piece
    span: slice
    last: bool


class Run(Protocol):
    """Does work of that name; on a device perhaps by replaying what it has recorded of it (device/recording.py)."""

    def __call__(self, name: str, work: Callable[[], None], *moving: Any) -> None:
        """moving: what of its tensors may be elsewhere next time."""


def run_now(name: str, work: Callable[[], None], *moving: Any) -> None:  # noqa: ARG001
    """Do it."""
    work()


@dataclass(frozen=True)
class PieceTools:
    """What the pieces of an engine share. clock: entering clock.working() may wait for a turn on the CPU.

    rollback: of residuals where the rows have them. new_run: makes what does the work of a piece.
    """

    rows: Rows
    transport: Transport
    agreement: Agreement
    figures: Figures
    clock: WorkClock
    rollback: Rollback[Any]
    new_run: Callable[[], Run] = lambda: run_now

    @contextmanager
    def working(self, figure: Literal["encode_ms", "decode_ms"]) -> Iterator[None]:
        """Count the block as work, and its time as that figure."""
        with self.clock.working():
            start = perf_counter()
            yield
            self.figures.add_time(**{figure: (perf_counter() - start) * 1e3})


@dataclass(frozen=True)
class Extent:
    """What is cut into pieces: rows x columns of a gradient.

    key: names it, the same on all workers. sharded: every worker decodes the row of its number, else all of them the
    only one. label: what errors call it, the same on all workers. layout: a text, the same for the same
    parameters and ends only. ends: columns where rotation blocks end, besides (block_ends.py).
    """

    key: str
    rows: int
    columns: int
    sharded: bool
    label: str
    layout: str = ""
    ends: tuple[int, ...] = ()

    def spans(self, rows: Rows) -> list[slice]:
        """Return the columns of the partitions."""
        config = rows.resolved.config
        if self.sharded:
            return column_spans(self.rows, self.columns, config)
        return even_spans(self.columns, config.partition_coordinates, config.rotation_block)

    def name(self, row: int, span: slice) -> str:
        """Return the name of a partition, its random key: the same on all routes."""
        place = f"{row},{span.start}:{span.stop}" if self.sharded else f"{span.start}:{span.stop}"
        return f"{self.key}[{place}]"


class ThcPiece(Piece):
    """Some columns of a gradient, which travel together: partitions of every row, and their transfer.

    extent: of the gradient. spans: of the partitions. residual: [rows, columns] of the gradient, where the
    kernels work; None without error feedback.
    """

    def __init__(self, tools: PieceTools, extent: Extent, spans: Sequence[slice], residual: Any | None) -> None:
        blocks, padded = tools.rows.sizes(spans, extent.ends)
        named = [[(extent.name(row, span), span) for span in spans] for row in range(extent.rows)]
        self.span = slice(spans[0].start, spans[-1].stop)
        columns = self.span.stop - self.span.start
        self._tools = tools
        name = f"{columns} columns" if extent.sharded else named[0][0][0]
        self._transfer = tools.transport.new_transfer(name, norm_words(extent.rows, blocks), padded)
        residuals = [None] * extent.rows if residual is None else [row[self.span] for row in residual]
        self._rows = tools.rows.rows(named, extent.ends, residuals, self._transfer, tools.transport.codes_per_chunk)
        names = [row[0][0] for row in named]
        identity = _identity(extent, names, self.span, joint=tools.rows.joint)
        self._message = tools.agreement.message(*identity, self._rows)
        self._decoded = self._rows[tools.rows.worker if extent.sharded else 0]
        self._run = tools.new_run()
        self._gradient: Sequence[Any] = ()

    def measure(self, gradient: Sequence[Any], round: int) -> None:
        """See Piece; the rows as arrays.gradient_view takes them, or tensors on the device of the kernels."""
        self._gradient = gradient
        with self._tools.working("encode_ms"):
            for row in self._rows:
                row.begin(round)
            self._message.begin(round)
            self._run("norms", partial(self._measure, gradient), *gradient)
        self._transfer.send_norms(self._message.sent)

    def encode(self) -> None:
        """See Piece. Waits for the maximum norms."""
        tools, gradient = self._tools, self._gradient
        received = self._transfer.wait_norms()
        if tools.rollback.active:
            for row in self._rows:
                if row.residual is not None:
                    tools.rollback.save(row.residual)
        with tools.working("encode_ms"):
            self._run("codes", partial(self._encode, gradient, received), *gradient, self._transfer.codes)
        if tools.rollback.active:
            for row in self._rows:
                tools.rollback.request_unless(row.finite())
        self._gradient = ()
        self._transfer.send_codes()
        tools.figures.encoded(self._rows)

    def sum(self, then: Callable[[], object] | None = None) -> None:
        """See Piece."""
        self._transfer.wait_codes()
        with self._tools.working("encode_ms"):
            self._run("sums", partial(self._sum, then), self._transfer.codes)
        self._transfer.send_sums()

    def decode(self, out: Any) -> None:
        """See Piece."""
        self._transfer.wait_sums()
        with self._tools.working("decode_ms"):
            self._run("average", partial(self._decode, out), out, self._transfer.codes)
        self._tools.transport.done(self._transfer)

    def _measure(self, gradient: Sequence[Any]) -> None:
        for row, mine in zip(self._rows, gradient, strict=True):
            row.measure(mine)
        self._message.write()

    def _encode(self, gradient: Sequence[Any], received: Any) -> None:
        self._message.take(received)
        for row, mine in zip(self._rows, gradient, strict=True):
            row.encode(mine)

    def _sum(self, then: Callable[[], object] | None) -> None:
        self._transfer.sum(self._decoded.requantize)
        if then is not None:
            then()

    def _decode(self, out: Any) -> None:
        self._decoded.decode(*self._transfer.aggregate(), out)


def make_pieces(tools: PieceTools, extent: Extent, residual: Any | None) -> Iterator[PlacedPiece]:
    """Give the pieces of a gradient, made when asked for: later ones may use the memory of those that are done.

    residual: [rows, columns], see ThcPiece.
    """
    spans = extent.spans(tools.rows)
    for group in [spans] if tools.rows.joint else [[span] for span in spans]:
        piece = ThcPiece(tools, extent, group, residual)
        yield PlacedPiece(piece, piece.span, last=piece.span.stop == extent.columns)


class GradientPieces:
    """The pieces of gradients of one layout, to be asked for in every round; arguments as make_pieces()."""

    def __init__(self, tools: PieceTools, extent: Extent, residual: Any | None) -> None:
        self._make = partial(make_pieces, tools, extent, residual)
        self._kept = None if tools.transport.lends else [*self._make()]

    def __call__(self, round: Round) -> Iterable[PlacedPiece]:
        """Return those of a round: none where all of the gradient travels exactly."""
        if not round.compress:
            return ()
        return self._make() if self._kept is None else self._kept


def _identity(extent: Extent, names: Sequence[str], span: slice, *, joint: bool) -> tuple[Sequence[str], int, str, str]:
    """Return what identifies a piece, for Agreement.message(): names, elements of a row, label, layout."""
    columns = span.stop - span.start
    if joint:
        size = extent.rows * extent.columns
        return [extent.key], size, f"{extent.label} ({size} elements)", extent.layout
    part = f"elements {span.start} to {span.stop} of {extent.columns}"
    if extent.sharded:
        part = f"columns {span.start} to {span.stop} of {extent.columns}"
    elif columns == extent.columns:
        part = f"{columns} elements"
    return names, columns, f"{extent.label} ({part})", extent.layout
