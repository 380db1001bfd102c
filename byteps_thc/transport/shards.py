"""Where the codes and sums of a piece lie when every rank sums a shard of them."""

from __future__ import annotations

from dataclasses import dataclass

from byteps_thc import _core
from byteps_thc.config import ResolvedConfig

_MULTIPLE = 64  # of codes in a shard: whole bytes for codes and packed sums of any width


@dataclass(frozen=True)
class ShardLayout:
    """codes: of the piece. shard_codes: that each rank sums; the last shards may have fewer that mean something.

    code_bytes: of `codes` codes, at the beginning of workers * shard_bytes. sum_bytes: of the sums of a shard on the
    wire, sum_bits each.
    """

    workers: int
    codes: int
    shard_codes: int
    code_bytes: int
    shard_bytes: int
    sum_bytes: int

    @classmethod
    def of(cls, resolved: ResolvedConfig, codes: int) -> ShardLayout:
        """Return the layout of a piece of so many codes, padded ones included."""
        workers, bits = resolved.workers, resolved.config.bits
        shard_codes = -(-codes // (workers * _MULTIPLE)) * _MULTIPLE
        return cls(
            workers,
            codes,
            shard_codes,
            _core.code_bytes(codes, bits),
            _core.code_bytes(shard_codes, bits),
            shard_codes * resolved.sum_bits // 8,
        )


def packs_sums(resolved: ResolvedConfig) -> bool:
    """Whether sums take fewer bits on the wire than value_bits."""
    return resolved.sum_bits < resolved.value_bits
