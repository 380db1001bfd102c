"""The host kernels of a rank, applied to the messages of a piece."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from byteps_thc._native import _core
from byteps_thc._scheme.arrays import F32, U8, Gradient
from byteps_thc._scheme.block_plan import HEADER_BYTES, MessageLayout, Shard
from byteps_thc._scheme.built import check_arithmetic
from byteps_thc._scheme.rank_settings import RankSettings

check_arithmetic(_core)


class Messages(NamedTuple):
    """The parts of several messages, a row each. words: int32[messages, 4]. scales, exact: float32. codes: uint8."""

    words: npt.NDArray[np.int32]
    scales: F32
    exact: F32
    codes: U8

    @classmethod
    def of(cls, memory: U8, layout: MessageLayout) -> Messages:
        """Return the parts of uint8[messages, layout.size_bytes], the same memory."""
        return cls(
            memory[:, :HEADER_BYTES].view(np.int32),
            memory[:, HEADER_BYTES : layout.exact_at].view(np.float32),
            memory[:, layout.exact_at : layout.codes_at].view(np.float32),
            memory[:, layout.codes_at : layout.codes_at + layout.code_bytes],
        )


class RankCodec:
    """Rounds to one rank's points, and decodes all ranks' codes. pool: threads of the kernels."""

    def __init__(self, settings: RankSettings, rank: int, pool: _core.ThreadPool | None = None) -> None:
        self.settings, self.rank = settings, rank
        self._pool = pool

    def encode(self, shards: Sequence[Shard], rows: Sequence[Gradient], messages: Messages, round: int) -> None:
        """Write codes and scales of a gradient, from this rank to each owner. rows: of the piece."""
        own = self.settings.up[self.rank]
        for shard, codes, scales in zip(shards, messages.codes, messages.scales, strict=True):
            _core.encode_nearest(
                rows[shard.row][shard.columns],
                codes[: _core.code_bytes(shard.blocks.padded, own.bits)],
                scales[: len(shard.blocks)],
                edges=own.edges,
                points=own.points,
                **self._keywords(shard, round),
            )

    def recode(self, shard: Shard, received: Messages, sent: Messages, round: int) -> None:
        """Write codes and scales of the own shard's average. received: of all ranks. sent: one message."""
        down = self.settings.down
        _core.recode_nearest(
            *self._received(shard, received),
            sent.codes[0, : _core.code_bytes(shard.blocks.padded, down.bits)],
            sent.scales[0, : len(shard.blocks)],
            points=self.settings.up_points,
            down_edges=down.edges,
            down_points=down.points,
            **self._keywords(shard, round),
        )

    def average(self, shard: Shard, received: Messages, out: Gradient, round: int) -> None:
        """Write the average of the own shard. received: of all ranks."""
        _core.decode_nearest(
            *self._received(shard, received), out, points=self.settings.up_points, **self._keywords(shard, round)
        )

    def decode(self, shards: Iterable[Shard], gathered: Messages, out: Gradient, round: int) -> None:
        """Write the averages of all shards. gathered: of all owners. out: of the piece."""
        down = self.settings.down
        for number, shard in enumerate(shards):
            _core.decode_nearest(
                gathered.codes[number : number + 1, : _core.code_bytes(shard.blocks.padded, down.bits)],
                gathered.scales[number : number + 1, : len(shard.blocks)],
                out[shard.columns],
                points=down.points[np.newaxis],
                down=True,
                **self._keywords(shard, round),
            )

    def _received(self, shard: Shard, received: Messages) -> tuple[U8, F32]:
        code_bytes = _core.code_bytes(shard.blocks.padded, self.settings.bits)
        return received.codes[:, :code_bytes], received.scales[:, : len(shard.blocks)]

    def _keywords(self, shard: Shard, round: int) -> dict[str, Any]:
        return {
            "blocks": shard.blocks,
            "seed": self.settings.config.seed,
            "tensor": shard.tensor,
            "round": round,
            "pool": self._pool,
        }
