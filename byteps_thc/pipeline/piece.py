"""A piece of a gradient on its way to the average: the one place where gradients are encoded and decoded.

    measure -> [norms travel] -> encode -> [codes travel] -> sum -> [sums travel] -> decode

Drivers decide when (drivers.py): a thread per stage, one stream of a device, or one thread that goes from piece to
piece. A Transfer moves what is in brackets. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol

from byteps_thc.block_plan import WHOLE, BlockPlan
from byteps_thc.pipeline.figures import Figures
from byteps_thc.pipeline.fingerprint import Agreement, norm_words
from byteps_thc.pipeline.partitioning import column_spans, even_spans
from byteps_thc.pipeline.piece_rows import Rows
from byteps_thc.pipeline.rollback import Rollback
from byteps_thc.pipeline.work_clock import WorkClock
from byteps_thc.transport.transport import Transport

if TYPE_CHECKING:  # they have tensors
    from byteps_thc.device_message import Beside
    from byteps_thc.transport.communicator import ExactSum, Waitable

_UNTIMED = nullcontext()


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
        """Begin a round with the rows of a gradient, [rows, columns], not to be touched until encode() is over."""

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


@dataclass(frozen=True)
class PieceTools:
    """What the pieces of an engine share. clock: entering clock.working() may wait for a turn on the CPU.

    rollback: of residuals where the rows have them. exact: sums what rows take out (Rows.takes_exact). timed: False:
    what a stage takes is not the CPU's time, so neither clock nor figures are told of it.
    """

    rows: Rows
    transport: Transport
    agreement: Agreement
    figures: Figures
    clock: WorkClock
    rollback: Rollback[Any]
    exact: ExactSum | None = None
    timed: bool = True

    def working(self, figure: Literal["encode_ms", "decode_ms"]) -> AbstractContextManager[None]:
        """Count the block as work, and its time as that figure."""
        return self._timed(figure) if self.timed else _UNTIMED

    @contextmanager
    def _timed(self, figure: Literal["encode_ms", "decode_ms"]) -> Iterator[None]:
        with self.clock.working():
            start = perf_counter()
            yield
            self.figures.add_time(**{figure: (perf_counter() - start) * 1e3})


@dataclass(frozen=True)
class Extent:
    """What is cut into pieces: rows x columns of a gradient.

    key: names it, the same on all workers. sharded: every worker decodes the row of its number, else all of them the
    only one. label: what errors call it, the same on all workers. layout: a text, the same for the same
    parameters and plan only. plan: of the blocks, in columns.
    """

    key: str
    rows: int
    columns: int
    sharded: bool
    label: str
    layout: str = ""
    plan: BlockPlan = WHOLE

    def spans(self, rows: Rows, servers: int) -> list[slice]:
        """Return the columns of the partitions. servers: see Transport."""
        config = rows.resolved.config
        if self.sharded:
            return column_spans(self.rows, self.columns, config)
        return even_spans(self.columns, config.partition_coordinates, config.rotation_block, servers)

    def name(self, row: int, span: slice) -> str:
        """Return the name of a partition, its random key: the same on all routes with as many servers."""
        place = f"{row},{span.start}:{span.stop}" if self.sharded else f"{span.start}:{span.stop}"
        return f"{self.key}[{place}]"


class ThcPiece(Piece):
    """Some columns of a gradient, which travel together: partitions of every row, and their transfer.

    extent: of the gradient. spans: of the partitions. residual: [rows, columns] of the gradient, where the
    kernels work; None without error feedback.
    """

    def __init__(
        self, tools: PieceTools, extent: Extent, spans: Sequence[slice], residual: Any | None, beside: Beside | None
    ) -> None:
        norms, padded = tools.rows.sizes(spans, extent.plan)
        named = [[(extent.name(row, span), span) for span in spans] for row in range(extent.rows)]
        self.span = slice(spans[0].start, spans[-1].stop)
        columns = self.span.stop - self.span.start
        self._tools = tools
        name = f"{columns} columns" if extent.sharded else named[0][0][0]
        self._transfer = tools.transport.new_transfer(name, norm_words(extent.rows, norms), padded)
        residuals = None if residual is None else residual[:, self.span]
        self._rows = tools.rows.rows(
            named, extent.plan, residuals, self._transfer, tools.transport.codes_per_chunk, beside
        )
        names = [row[0][0] for row in named]
        identity = identity_of(extent, names, self.span, joint=tools.rows.joint)
        self._message = tools.agreement.message(*identity, self._rows)
        self._decoded = self._rows[tools.rows.worker if extent.sharded and not tools.rows.joint else 0]
        self._gradient: Sequence[Any] = ()
        self._exact_sum: Waitable | None = None

    def measure(self, gradient: Sequence[Any], round: int) -> None:
        """See Piece; the rows as arrays.gradient_view takes them, or a tensor on the device of the kernels."""
        self._gradient = gradient = [gradient] if self._tools.rows.joint else gradient
        with self._tools.working("encode_ms"):
            for row in self._rows:
                row.begin(round)
            self._message.begin(round)
            for row, mine in zip(self._rows, gradient, strict=True):
                row.measure(mine)
            self._message.write()
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
            self._message.take(received)
            for row, mine in zip(self._rows, gradient, strict=True):
                row.encode(mine)
        if tools.rollback.active:
            for row in self._rows:
                tools.rollback.request_unless(row.finite())
        self._gradient = ()
        self._transfer.send_codes()
        if self._decoded.exact is not None and tools.exact is not None:
            self._exact_sum = tools.exact(self._decoded.exact)
        tools.figures.encoded(self._rows)

    def sum(self, then: Callable[[], object] | None = None) -> None:
        """See Piece."""
        if then is not None:
            with self._tools.working("encode_ms"):
                then()

    def decode(self, out: Any) -> None:
        """See Piece."""
        tools = self._tools
        self._transfer.wait_sums()
        if self._exact_sum is not None:
            self._exact_sum.wait()
            if tools.rollback.active:
                tools.rollback.request_unless(self._decoded.exact.isfinite().all())
        with tools.working("decode_ms"):
            self._decoded.decode(*self._transfer.aggregate(), out)
        tools.transport.done(self._transfer)


def make_pieces(
    tools: PieceTools, extent: Extent, residual: Any | None, beside: Beside | None = None
) -> Iterator[PlacedPiece]:
    """Give the pieces of a gradient, made when asked for: later ones may use the memory of those that are done.

    residual: [rows, columns], see ThcPiece. beside: see Rows.rows().
    """
    spans = extent.spans(tools.rows, tools.transport.servers)
    for group in [spans] if tools.rows.joint else [[span] for span in spans]:
        piece = ThcPiece(tools, extent, group, residual, beside)
        yield PlacedPiece(piece, piece.span, last=piece.span.stop == extent.columns)


class GradientPieces:
    """The pieces of gradients of one layout, to be asked for in every round; arguments as make_pieces()."""

    def __init__(self, tools: PieceTools, extent: Extent, residual: Any | None, beside: Beside | None = None) -> None:
        self._make = partial(make_pieces, tools, extent, residual, beside)
        self._kept = None if tools.transport.lends else [*self._make()]

    def __call__(self, round: Round) -> Iterable[PlacedPiece]:
        """Return those of a round: none where all of the gradient travels exactly."""
        if not round.compress:
            return ()
        return self._make() if self._kept is None else self._kept


def identity_of(
    extent: Extent, names: Sequence[str], span: slice, *, joint: bool
) -> tuple[Sequence[str], int, str, str]:
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
