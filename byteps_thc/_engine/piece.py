"""A piece of a gradient on its way to the average.

    measure -> encode -> sum -> decode

Drivers decide when (drivers.py): a thread per stage, one stream of a device, or one thread that goes from piece to
piece. server_piece.py has pieces whose codes servers add, ranks/ has pieces whose codes ranks decode.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from byteps_thc._scheme.block_plan import WHOLE, BlockPlan


@dataclass(frozen=True)
class Round:
    """A round of a gradient. number: the random key, the same on all workers. compress: False: all of it travels
    exactly."""

    number: int
    compress: bool


class Piece(Protocol):
    """What stages do with a piece, in this order; each is called by one thread."""

    def measure(self, gradient: Tensor, round: int) -> None:
        """Begin a round with the rows of a gradient, [rows, columns], not to be touched until encode() is over.

        Sends what the other workers need first: norms, or codes.
        """

    def encode(self) -> None:
        """Send the codes, if they have not left yet, and keep what they lack. Raises InputError as sum()."""

    def sum(self) -> None:
        """Average this worker's share, if it has one.

        Raises InputError on all workers if they have measured different gradients; nothing has changed then.
        """

    def decode(self, out: Tensor) -> None:
        """Write the average of a row to out, [columns]."""


@dataclass(frozen=True)
class PlacedPiece:
    """A piece, and the columns of the gradient that it compresses. last: of the gradient."""

    piece: Piece
    span: slice
    last: bool


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

    def name(self, row: int, span: slice) -> str:
        """Return the name of a partition, its random key: the same on all routes with as many servers."""
        place = f"{row},{span.start}:{span.stop}" if self.sharded else f"{span.start}:{span.stop}"
        return f"{self.key}[{place}]"


def identity_of(
    extent: Extent, names: Sequence[str], span: slice, *, whole: bool
) -> tuple[Sequence[str], int, str, str]:
    """Return what identifies a piece, for Fingerprints.of(): names, elements of a row, label, layout."""
    columns = span.stop - span.start
    if whole:
        size = extent.rows * extent.columns
        return [extent.key], size, f"{extent.label} ({size} elements)", extent.layout
    part = f"elements {span.start} to {span.stop} of {extent.columns}"
    if extent.sharded:
        part = f"columns {span.start} to {span.stop} of {extent.columns}"
    elif columns == extent.columns:
        part = f"{columns} elements"
    return names, columns, f"{extent.label} ({part})", extent.layout


#: Partitions do not get shorter so that each server has one: a round of norms takes longer than 64 packets of codes.
_SHORTEST_SHARE = 1 << 16


def even_spans(size: int, largest: int, multiple: int, servers: int = 1) -> list[slice]:
    """Cut 0 .. size into as few spans as possible, all about as long: a short last one would cost as much to send.

    largest: length of a span at most. Spans but the last are multiples of `multiple`, or of `largest` if that is less.
    servers: spans go to these in turns, so their number is a multiple of it unless that makes them too short.
    """
    multiple = min(multiple, largest)
    multiples = -(-size // multiple)
    count = -(-multiples // (largest // multiple))
    count = max(count, min(-(-count // servers) * servers, size // _SHORTEST_SHARE, multiples))
    cuts = [multiple * (multiples * i // count) for i in range(count)] + [size]
    return [slice(*cut) for cut in itertools.pairwise(cuts)]
