"""What averages send over the network cards of a node: for warnings, `thc break-even` and the table in docs/plugins.md.

Bytes per parameter in one direction; a node receives as many as it sends. With R ranks, g of them on the node, N nodes,
codes of c bytes and sums of s bytes a coordinate (of requantized ones with their scales):

    ring all-reduce    2 (R-1)/R * 4, or 2 for bf16         enters and leaves a node once, whatever g is
    flat THC           c g (R-g)/R + s (R-1)/R              every rank sends its codes; sums go around a ring, as NCCL's
                       c g (R-g)/R + s g (R-g)/R            do, or from rank to rank, as over gloo
    THC in two levels  (c + s) (N-1)/N                      one gradient of a node, split among its ranks
    all-reduce of integers (CompressionPolicy.collective)   2 (R-1)/R, in two levels 2 (N-1)/N

Left out: headers, norms (4 bytes per rotation block and receiver), parameters that travel uncompressed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from byteps_thc.compressor import SCALE_BITS, SCALE_GROUP
from byteps_thc.config import ThcConfig
from byteps_thc.transport.transport import Collective

_FP32_BYTES, _BF16_BYTES, _WORD_BYTES = 4, 2, 1
_BITS = 8


@dataclass(frozen=True)
class LinkBytes:
    """Bytes per parameter that the cards of the node send which sends most.

    fp32, bf16: a ring all-reduce over all ranks. flat: THC over all ranks. two_levels: exact within the nodes, THC
    between them.
    """

    fp32: float
    bf16: float
    flat: float
    two_levels: float


def link_bytes(
    nodes: Sequence[int], config: ThcConfig | None = None, collective: Collective = "shards", *, ring: bool = True
) -> LinkBytes:
    """Return what averages send over a node's cards.

    nodes: ranks of each node: [8] * 4 are 4 nodes of 8. config: None: ThcConfig(). ring: whether gathered sums go
    around a ring, as NCCL's do; False: from rank to rank, as over gloo. ConfigurationError when the config has no table
    for so many ranks.
    """
    config = config or ThcConfig()
    ranks = sum(nodes)
    if len(nodes) < 2:
        return LinkBytes(0.0, 0.0, 0.0, 0.0)
    fp32, bf16 = (_ring(ranks, size) for size in (_FP32_BYTES, _BF16_BYTES))
    if collective == "all_reduce":
        return LinkBytes(fp32, bf16, _ring(ranks, _WORD_BYTES), _ring(len(nodes), _WORD_BYTES))
    codes, sums = _coordinate_bytes(config, ranks)
    # Shares of the coordinates that leave a node, from each of its ranks; codes and sums go to their owner's node.
    leaving = [own * (ranks - own) / ranks for own in nodes]
    flat = max(codes * share + sums * ((ranks - 1) / ranks if ring else share) for share in leaving)
    two_levels = sum(_coordinate_bytes(config, len(nodes))) * (len(nodes) - 1) / len(nodes)
    return LinkBytes(fp32, bf16, flat, two_levels)


def _coordinate_bytes(config: ThcConfig, workers: int) -> tuple[float, float]:
    """Return bytes of a code and of a sum, for so many ranks that all need the sums."""
    resolved = config.resolve(workers, packed_sums=True)
    scale_bits = 0.0 if resolved.down is None else SCALE_BITS / SCALE_GROUP
    return resolved.table.bits / _BITS, (resolved.sum_bits + scale_bits) / _BITS


def _ring(ranks: int, element_bytes: int) -> float:
    return 2 * (ranks - 1) / ranks * element_bytes
