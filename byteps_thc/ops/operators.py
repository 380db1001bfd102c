"""The operators: names, effects and shapes. What they do is in host.py and device.py.

Without `from __future__ import annotations`: torch makes schemas of the annotations.
"""

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from byteps_thc.ops import host
from byteps_thc.ops.arguments import blocks_of, code_bits_of, packed_bytes, padded_of


def _device() -> ModuleType:
    """Return device.py, which needs Triton."""
    from byteps_thc.ops import device

    return device


@torch.library.custom_op("byteps_thc::block_norms", mutates_args=(), device_types="cpu")
def block_norms(gradient: Tensor, residual: Tensor | None, rotation_block: int) -> Tensor:
    """Return float32[B], the Euclidean norms of the rotation blocks of gradient + residual.

    gradient: float32, float16 or bfloat16[n], contiguous. residual: float32[n]; None: zeros. rotation_block: a power of
    two. All workers encode with the maximum of theirs, compared as integers (norms.view(torch.int32)): NaN wins.
    """
    return host.block_norms(gradient, residual, rotation_block)


@block_norms.register_kernel("cuda")
def _block_norms_cuda(gradient: Tensor, residual: Tensor | None, rotation_block: int) -> Tensor:
    norms: Tensor = _device().block_norms(gradient, residual, rotation_block)
    return norms


@block_norms.register_fake
def _block_norms_fake(gradient: Tensor, residual: Tensor | None, rotation_block: int) -> Tensor:  # noqa: ARG001
    return gradient.new_empty(blocks_of(gradient.numel(), rotation_block), dtype=torch.float32)


@torch.library.custom_op("byteps_thc::encode", mutates_args=("residual",), device_types="cpu")
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

    residual: becomes what is lost, unless a norm is not finite or above 2^96: then it stays as it was, and `kept`,
    int32[1], is 0, else 1. None: nothing is carried. norms: of block_norms; max_norms: float32[B], over the workers.
    codes: uint8[P * b / 8]. clamped: int64[1], coordinates beyond the clamp, of `threshold` norms. See block_norms.
    """
    return host.encode(gradient, residual, norms, max_norms, table, key, threshold, rotation_block)


@encode.register_kernel("cuda")
def _encode_cuda(
    gradient: Tensor,
    residual: Tensor | None,
    norms: Tensor,
    max_norms: Tensor,
    table: Sequence[Tensor],
    key: Tensor,
    threshold: float,
    rotation_block: int,
) -> tuple[Tensor, Tensor, Tensor]:
    encoded: tuple[Tensor, Tensor, Tensor] = _device().encode(
        gradient, residual, norms, max_norms, table, key, threshold, rotation_block
    )
    return encoded


@encode.register_fake
def _encode_fake(
    gradient: Tensor,
    residual: Tensor | None,  # noqa: ARG001
    norms: Tensor,  # noqa: ARG001
    max_norms: Tensor,  # noqa: ARG001
    table: Sequence[Tensor],
    key: Tensor,  # noqa: ARG001
    threshold: float,  # noqa: ARG001
    rotation_block: int,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:
    codes = packed_bytes(padded_of(gradient.numel()), code_bits_of(table))
    return (
        gradient.new_empty(codes, dtype=torch.uint8),
        gradient.new_empty(1, dtype=torch.int32),
        gradient.new_empty(1, dtype=torch.int64),
    )


@torch.library.custom_op("byteps_thc::lookup_sum", mutates_args=(), device_types="cpu")
def lookup_sum(codes: Tensor, table: Sequence[Tensor], value_bits: int) -> Tensor:
    """Return the sums of table values over the workers: uint8 or uint16 (value_bits) [codes of a worker].

    codes: uint8[workers, bytes], contiguous: of all coordinates, or of those that this worker sums. InputError where
    g * workers does not fit value_bits.
    """
    return host.lookup_sum(codes, table, value_bits)


@lookup_sum.register_kernel("cuda")
def _lookup_sum_cuda(codes: Tensor, table: Sequence[Tensor], value_bits: int) -> Tensor:
    sums: Tensor = _device().lookup_sum(codes, table, value_bits)
    return sums


@lookup_sum.register_fake
def _lookup_sum_fake(codes: Tensor, table: Sequence[Tensor], value_bits: int) -> Tensor:
    dtype = torch.uint8 if value_bits == 8 else torch.uint16
    return codes.new_empty(codes.shape[1] * 8 // code_bits_of(table), dtype=dtype)


@torch.library.custom_op("byteps_thc::pack", mutates_args=(), device_types="cpu")
def pack(numbers: Tensor, bits: int) -> Tensor:
    """Return numbers, uint8 or uint16[count], as a stream of `bits` bits each: uint8[ceil(count * bits / 8)].

    For sums that travel in fewer bits than they have: resolved.sum_bits. bits: 1 .. 8 for uint8, 1 .. 16 for uint16.
    """
    return host.pack(numbers, bits)


@pack.register_kernel("cuda")
def _pack_cuda(numbers: Tensor, bits: int) -> Tensor:
    packed: Tensor = _device().pack(numbers, bits)
    return packed


@pack.register_fake
def _pack_fake(numbers: Tensor, bits: int) -> Tensor:
    return numbers.new_empty(packed_bytes(numbers.numel(), bits), dtype=torch.uint8)


@torch.library.custom_op("byteps_thc::decode", mutates_args=(), device_types="cpu")
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
    sum_bits: int | None = None,
) -> Tensor:
    """Return the average gradient, dtype[coordinates]: float32, float16 or bfloat16.

    aggregate: uint8 or uint16[P], sums over `workers` workers, or with sum_bits uint8, what pack() made of them: the
    same on all workers, because uint16, and packed sums of more than 8 bits, are rounded in another order than uint8.
    max_norms, table, key, threshold, rotation_block: those it was encoded with. Blocks whose max norm is not finite
    become NaN.
    """
    return host.decode(
        aggregate, max_norms, table, key, coordinates, workers, threshold, rotation_block, dtype, sum_bits
    )


@decode.register_kernel("cuda")
def _decode_cuda(
    aggregate: Tensor,
    max_norms: Tensor,
    table: Sequence[Tensor],
    key: Tensor,
    coordinates: int,
    workers: int,
    threshold: float,
    rotation_block: int,
    dtype: torch.dtype,
    sum_bits: int | None = None,
) -> Tensor:
    average: Tensor = _device().decode(
        aggregate, max_norms, table, key, coordinates, workers, threshold, rotation_block, dtype, sum_bits
    )
    return average


@decode.register_fake
def _decode_fake(
    aggregate: Tensor,
    max_norms: Tensor,  # noqa: ARG001
    table: Sequence[Tensor],  # noqa: ARG001
    key: Tensor,  # noqa: ARG001
    coordinates: int,
    workers: int,  # noqa: ARG001
    threshold: float,  # noqa: ARG001
    rotation_block: int,  # noqa: ARG001
    dtype: torch.dtype,
    sum_bits: int | None = None,  # noqa: ARG001
) -> Tensor:
    return aggregate.new_empty(coordinates, dtype=dtype)
