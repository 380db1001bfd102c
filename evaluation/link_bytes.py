"""Bytes of averages over the network cards of a node: for the table in docs/ddp.md.

Bytes per parameter in one direction; a node receives as many as it sends. With R ranks, g ranks on the node, N nodes,
codes of c bytes and averages of s bytes a coordinate:

    ring all-reduce    2 (R-1)/R * 4, or 2 for bf16         enters and leaves a node once, whatever g is
    flat THC           c g (R-g)/R + s (R-1)/R              every rank sends its codes; averages go around a ring, as
                       c g (R-g)/R + s g (R-g)/R            NCCL's do, or from rank to rank, as over gloo
    THC in two levels  (c + s) (N-1)/N                      one gradient of a node, split among its ranks

Without headers, scales (4 bytes of each rotation block), parameters that travel uncompressed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from byteps_thc._scheme.decoding.settings import RankCodes

_FP32_BYTES, _BF16_BYTES = 4, 2
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


def link_bytes(nodes: Sequence[int], codes: RankCodes | None = None, *, ring: bool = True) -> LinkBytes:
    """Return the bytes of averages over the cards of a node.

    nodes: ranks of each node: [8] * 4 are 4 nodes of 8. codes: None: RankCodes(). ring: whether gathered codes go
    around a ring, as NCCL's do; False: from rank to rank, as over gloo.
    """
    codes = codes or RankCodes()
    ranks = sum(nodes)
    if len(nodes) < 2:
        return LinkBytes(0.0, 0.0, 0.0, 0.0)
    fp32, bf16 = (_ring(ranks, size) for size in (_FP32_BYTES, _BF16_BYTES))
    up, averages = _coordinate_bytes(codes, ranks)
    # Shares of the coordinates that leave a node, from each of its ranks. Codes go to their owner's node, averages come
    # from it.
    leaving = [own * (ranks - own) / ranks for own in nodes]
    flat = max(up * share + averages * ((ranks - 1) / ranks if ring else share) for share in leaving)
    two_levels = sum(_coordinate_bytes(codes, len(nodes))) * (len(nodes) - 1) / len(nodes)
    return LinkBytes(fp32, bf16, flat, two_levels)


def _coordinate_bytes(codes: RankCodes, workers: int) -> tuple[float, float]:
    """Return bytes of a code of a gradient and of an average."""
    settings = codes.resolve(workers)
    assert settings.down_bits is not None
    return settings.codes.bits / _BITS, settings.down_bits / _BITS


def _ring(ranks: int, element_bytes: int) -> float:
    return 2 * (ranks - 1) / ranks * element_bytes
