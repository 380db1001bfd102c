"""The operators as functions with types. torch.compile looks through them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from byteps_thc.ops import operators  # noqa: F401  # which registers them


def block_norms(gradient: Tensor, residual: Tensor | None, rotation_block: int) -> Tensor:
    """Return float32[B], the Euclidean norms of the rotation blocks of gradient + residual.

    gradient: float32, float16 or bfloat16[n], contiguous. residual: float32 or bfloat16[n]; None: zeros.
    rotation_block: a power of two. All workers encode with the maximum of theirs, compared as integers
    (norms.view(torch.int32)): NaN wins.
    """
    norms: Tensor = torch.ops.byteps_thc.block_norms(gradient, residual, rotation_block)
    return norms


def encode(
    gradient: Tensor,
    residual: Tensor | None,
    norms: Tensor,
    max_norms: Tensor,
    table: Sequence[Tensor],
    key: Tensor,
    threshold: float,
    rotation_block: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate, clamp, quantize and pack gradient + residual. Return (codes, kept, clamped).

    residual: becomes what is lost (bfloat16: rounded to nearest even), unless a norm is not finite or above 2^96: then
    it stays as it was, and `kept`, int32[1], is 0, else 1. None: nothing is carried. norms: of block_norms; max_norms:
    float32[B], over the workers. codes: uint8[P * b / 8]. clamped: int64[1], coordinates beyond the clamp, of
    `threshold` norms. See block_norms.
    """
    codes, kept, clamped = torch.ops.byteps_thc.encode(
        gradient, residual, norms, max_norms, table, key, threshold, rotation_block
    )
    return codes, kept, clamped


def lookup_sum(codes: Tensor, table: Sequence[Tensor], value_bits: int) -> Tensor:
    """Return the sums of table values over the workers: uint8 or uint16 (value_bits) [codes of a worker].

    codes: uint8[workers, bytes], contiguous: of all coordinates, or of those that this worker sums. InputError where
    g * workers does not fit value_bits.
    """
    sums: Tensor = torch.ops.byteps_thc.lookup_sum(codes, table, value_bits)
    return sums


def decode(
    aggregate: Tensor,
    max_norms: Tensor,
    table: Sequence[Tensor],
    key: Tensor,
    coordinates: int,
    workers: int,
    threshold: float,
    rotation_block: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return the average gradient, dtype[coordinates]: float32, float16 or bfloat16.

    aggregate: uint8 or uint16[P], sums over `workers` workers: the same type on all workers, because uint16 sums are
    rounded in another order than uint8 sums.
    max_norms, table, key, rotation_block: those it was encoded with. threshold: resolved.decode_threshold, the encoded
    one where there is a residual. Blocks whose max norm is not finite become NaN.
    """
    average: Tensor = torch.ops.byteps_thc.decode(
        aggregate, max_norms, table, key, coordinates, workers, threshold, rotation_block, dtype
    )
    return average
