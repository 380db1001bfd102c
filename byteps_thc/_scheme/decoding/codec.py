"""Messages among ranks, and the host kernels of a rank, which write and read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from byteps_thc._base.arrays import F32, U8, Gradient
from byteps_thc._base.built import check_arithmetic
from byteps_thc._native import _core
from byteps_thc._scheme.block_plan import BLOCK
from byteps_thc._scheme.decoding.settings import ResolvedRankCodes
from byteps_thc._scheme.shares import Shard

check_arithmetic(_core)

HEADER_BYTES = 16
#: Beside the number of a gradient on a device: ranks have different averages of the round before.
DAMAGED = 1 << 30
_ALIGNED_BYTES = 16


@dataclass(frozen=True)
class MessageLayout:
    """A message to an owner, or from one: 16 bytes of header, exact values, codes, scales. All messages of a piece have
    the size of the longest. exact: number of float32. code_bytes, scale_bytes: of packed codes, and of their scales.
    """

    exact: int
    code_bytes: int
    scale_bytes: int

    @classmethod
    def of(cls, shards: Sequence[Shard], bits: int) -> "MessageLayout":
        blocks = max(len(shard.blocks) for shard in shards)
        exact = max(shard.exact.stop - shard.exact.start for shard in shards)
        return cls(exact, _core.code_bytes(BLOCK * blocks, bits), _core.scale_bytes(blocks))

    @cached_property
    def exact_stop(self) -> int:
        return HEADER_BYTES + 4 * self.exact

    @cached_property
    def codes_at(self) -> int:
        return _aligned(self.exact_stop)

    @cached_property
    def scales_at(self) -> int:
        return self.codes_at + self.code_bytes

    @cached_property
    def size_bytes(self) -> int:
        return _aligned(self.scales_at + self.scale_bytes)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES


@dataclass(frozen=True)
class GatherPlan:
    """Shards of parameters that ranks gather, in the order of the ranks. Coordinates count from a shard's beginning.

    columns: elements of a shard. message: of a shard. exact: columns (start, stop) of a shard that travel exactly.
    """

    shards: Sequence[Shard]
    columns: int
    message: MessageLayout
    exact: Sequence[tuple[int, int]]


class Messages(NamedTuple):
    """The parts of several messages, a row each. words: int32[messages, 4]. exact: float32. codes, scales: uint8."""

    words: npt.NDArray[np.int32]
    exact: F32
    codes: U8
    scales: U8

    @classmethod
    def of(cls, memory: U8, layout: MessageLayout) -> "Messages":
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

    def __init__(self, settings: ResolvedRankCodes, rank: int, pool: _core.ThreadPool | None = None) -> None:
        self.settings, self.rank = settings, rank
        self._pool = pool

    def encode(self, shards: Sequence[Shard], rows: Sequence[Gradient], messages: Messages, round: int) -> None:
        """Write codes and scales of a gradient, from this rank to each owner. rows: of the piece."""
        bits, ranks = self.settings.codes.bits, self.settings.ranks
        for owner, shard in enumerate(shards):
            codes, scales = (part[owner] for part in messages.of_shard(shard, bits))
            common = self._keywords(shard, round)
            _core.encode_blocks(rows[shard.row], codes, scales, bits=bits, rank=self.rank, ranks=ranks, **common)

    def recode(self, shard: Shard, received: Messages, sent: Messages, round: int) -> None:
        """Write codes and scales of the own shard's average. received: of all ranks. sent: one message."""
        up, down = self.settings.codes.bits, self._down_bits
        [codes], [scales] = sent.of_shard(shard, down)
        common = self._keywords(shard, round)
        _core.recode_blocks(*received.of_shard(shard, up), codes, scales, bits=up, down_bits=down, **common)

    def average(self, shard: Shard, received: Messages, out: Gradient, round: int) -> int:
        """Write the average of the own shard; return the sum of its bits. received: of all ranks. out: of the piece."""
        bits = self.settings.codes.bits
        return _core.decode_blocks(*received.of_shard(shard, bits), out, bits=bits, **self._keywords(shard, round))

    def decode(self, shards: Sequence[Shard], gathered: Messages, out: Gradient, round: int) -> int:
        """Write the averages of all shards; return the sum of their bits. gathered: of owners. out: of the piece."""
        bits, total = self._down_bits, 0
        for owner, shard in enumerate(shards):
            codes, scales = (part[owner : owner + 1] for part in gathered.of_shard(shard, bits))
            total += _core.decode_blocks(codes, scales, out, bits=bits, down=True, **self._keywords(shard, round))
        return total

    @property
    def _down_bits(self) -> int:
        assert self.settings.down_bits is not None
        return self.settings.down_bits

    def _keywords(self, shard: Shard, round: int) -> dict[str, Any]:
        key = {"seed": self.settings.codes.seed, "tensor": shard.tensor, "round": round}
        return {"blocks": shard.blocks, **key, "pool": self._pool}
