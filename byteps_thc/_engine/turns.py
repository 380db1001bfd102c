"""Pieces that one thread takes through a round in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from byteps_thc._engine.piece import Piece
from byteps_thc._engine.server_piece import ServerTools

#: Pieces that a stage is ahead of the next one in run_in_turn(): hides the round trips of norms and codes.
_LOOKAHEAD = 2


@dataclass(frozen=True)
class Passage:
    """A piece's way through one round. gradient, out: see Piece."""

    piece: Piece
    gradient: Tensor
    out: Tensor


def run_in_turn(tools: ServerTools, passages: Iterable[Passage], round: int) -> None:
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
        tools.figures.recorder.add_time(communicate_ms=tools.clock.take_idle_ms())


def _go_on(measured: deque[Passage], encoded: deque[Passage], ahead: int) -> None:
    """Encode a piece that is more than `ahead` behind the last one measured; likewise decode one."""
    if len(measured) > ahead:
        measured[0].piece.encode()
        encoded.append(measured.popleft())
    if len(encoded) > (_LOOKAHEAD if measured else 0):
        passage = encoded.popleft()
        passage.piece.sum()
        passage.piece.decode(passage.out)
