"""Work of the kernels of one rank, on a gradient and messages in host memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from byteps_thc import _core
from byteps_thc.arrays import F32, U8
from byteps_thc.pipeline.ranks.codec import Messages, RankCodec
from byteps_thc.pipeline.ranks.shards import MessageLayout, Shard, blocks_of, cut_blocks, share_out
from byteps_thc.rank_settings import RankSettings


@dataclass(frozen=True)
class _Piece:
    """gradient: float32, of the piece. sent, received, averages: uint8[ranks, bytes]."""

    shards: list[Shard]
    gradient: F32
    up: MessageLayout
    down: MessageLayout
    sent: U8
    averages: U8


class RankBench:
    """Rank 0 of several. encode() comes first."""

    def __init__(self, settings: RankSettings, size: int) -> None:
        self._codec = RankCodec(settings, 0)
        gradient = np.random.default_rng(0).standard_normal(size, np.float32)
        blocks = blocks_of(size, settings.ranks, settings.config.rotation_block, (), ())
        pieces = -(-size // settings.config.partition_coordinates)
        self._pieces = [_piece(settings, gradient[columns], part) for columns, part in cut_blocks(blocks, pieces)]
        self._round = 0

    def encode(self) -> None:
        """Write the messages to all owners."""
        self._round += 1
        for piece in self._pieces:
            self._codec.encode(piece.shards, [piece.gradient], Messages.of(piece.sent, piece.up), self._round)

    def average(self) -> None:
        """Average the own shard. The messages of all ranks are those of this one to the owners."""
        for piece in self._pieces:
            received, own = Messages.of(piece.sent, piece.up), Messages.of(piece.averages[:1], piece.down)
            self._codec.recode(piece.shards[0], received, own, self._round)

    def decode(self) -> None:
        """Write the averages of all shards over the gradient."""
        for piece in self._pieces:
            self._codec.decode(piece.shards, Messages.of(piece.averages, piece.down), piece.gradient, self._round)


def _piece(settings: RankSettings, gradient: F32, blocks: _core.RotationBlocks) -> _Piece:
    ranks = settings.ranks
    shards = share_out(0, blocks, (), ranks)
    up, down = (MessageLayout.of(shards, bits) for bits in (settings.bits, settings.down.bits))
    sent, averages = (np.zeros((ranks, layout.size_bytes), np.uint8) for layout in (up, down))
    Messages.of(averages, down).scales[:] = 1  # blocks with a scale of 0 cost nothing
    return _Piece(shards, gradient, up, down, sent, averages)
