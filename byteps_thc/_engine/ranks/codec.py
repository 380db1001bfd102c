"""The host kernels of a rank, applied to the messages of a piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from byteps_thc._native import _core
from byteps_thc._scheme.arrays import F32, U8, Gradient
from byteps_thc._scheme.block_plan import BLOCK, HEADER_BYTES, MessageLayout, Shard
from byteps_thc._scheme.built import check_arithmetic
from byteps_thc._scheme.rank_settings import RankSettings

check_arithmetic(_core)


class Messages(NamedTuple):
    """The parts of several messages, a row each. words: int32[messages, 4]. exact: float32. codes, scales: uint8."""

    words: npt.NDArray[np.int32]
    exact: F32
    codes: U8
    scales: U8

    @classmethod
    def of(cls, memory: U8, layout: MessageLayout) -> Messages:
        """Return the parts of uint8[messages, layout.size_bytes], the same memory."""
        return cls(
            memory[:, :HEADER_BYTES].view(np.int32),
            memory[:, HEADER_BYTES : layout.exact_stop].view(np.float32),
            memory[:, layout.codes_at : layout.scales_at],
            memory[:, layout.scales_at : layout.scales_at + layout.scale_bytes],
        )

    def of_shard(self, shard: Shard, bits: int) -> tuple[U8, U8]:
        """Return the codes and scales of a shard in all messages, uint8[messages, bytes] each."""
        blocks = len(shard.blocks)
        code_bytes, scale_bytes = _core.code_bytes(BLOCK * blocks, bits), _core.scale_bytes(blocks)
        return self.codes[:, :code_bytes], self.scales[:, :scale_bytes]


class RankCodec:
    """Encodes one rank's gradients, and decodes all ranks' codes. pool: threads of the kernels."""

    def __init__(self, settings: RankSettings, rank: int, pool: _core.ThreadPool | None = None) -> None:
        self.settings, self.rank = settings, rank
        self._pool = pool

    def encode(self, shards: Sequence[Shard], rows: Sequence[Gradient], messages: Messages, round: int) -> None:
        """Write codes and scales of a gradient, from this rank to each owner. rows: of the piece."""
        bits, ranks = self.settings.bits, self.settings.ranks
        for owner, shard in enumerate(shards):
            codes, scales = (part[owner] for part in messages.of_shard(shard, bits))
            common = self._keywords(shard, round)
            _core.encode_blocks(rows[shard.row], codes, scales, bits=bits, rank=self.rank, ranks=ranks, **common)

    def recode(self, shard: Shard, received: Messages, sent: Messages, round: int) -> None:
        """Write codes and scales of the own shard's average. received: of all ranks. sent: one message."""
        up, down = self.settings.bits, self._down_bits
        [codes], [scales] = sent.of_shard(shard, down)
        common = self._keywords(shard, round)
        _core.recode_blocks(*received.of_shard(shard, up), codes, scales, bits=up, down_bits=down, **common)

    def average(self, shard: Shard, received: Messages, out: Gradient, round: int) -> None:
        """Write the average of the own shard. received: of all ranks. out: of the piece."""
        bits = self.settings.bits
        _core.decode_blocks(*received.of_shard(shard, bits), out, bits=bits, **self._keywords(shard, round))

    def decode(self, shards: Sequence[Shard], gathered: Messages, out: Gradient, round: int) -> None:
        """Write the averages of all shards. gathered: of all owners. out: of the piece."""
        bits = self._down_bits
        for owner, shard in enumerate(shards):
            codes, scales = (part[owner : owner + 1] for part in gathered.of_shard(shard, bits))
            _core.decode_blocks(codes, scales, out, bits=bits, down=True, **self._keywords(shard, round))

    @property
    def _down_bits(self) -> int:
        assert self.settings.down_bits is not None
        return self.settings.down_bits

    def _keywords(self, shard: Shard, round: int) -> dict[str, Any]:
        return {
            "blocks": shard.blocks,
            "seed": self.settings.config.seed,
            "tensor": shard.tensor,
            "round": round,
            "pool": self._pool,
        }
