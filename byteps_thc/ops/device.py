"""The operators on GPU tensors, by the kernels of byteps_thc/gpu; in the interpreter, on CPU tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from byteps_thc.arrays import everybody
from byteps_thc.compressor import LARGEST_NORM
from byteps_thc.gpu import kernels
from byteps_thc.ops.arguments import (
    blocks_of,
    check_aggregate,
    check_gradient,
    check_key,
    check_norms,
    check_numbers,
    check_same_device,
    check_sums,
    check_table,
    code_bits_of,
    device_table,
    packed_bytes,
    padded_of,
    unsigned,
)
from byteps_thc.tables.device import DeviceTable
from byteps_thc.wire.layout import MIN_CODES_PER_PACKET


def block_norms(gradient: Tensor, residual: Tensor | None, rotation_block: int) -> Tensor:
    """See functions.py."""
    check_gradient(gradient, residual, rotation_block)
    kernels.check_rotation_block(rotation_block)
    check_same_device(gradient, residual)
    norms = gradient.new_empty(blocks_of(gradient.numel(), rotation_block), dtype=torch.float32)
    kernels.block_norms(gradient, residual, norms, rotation_block=rotation_block)
    return unsigned(norms)


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
    """See functions.py."""
    check_gradient(gradient, residual, rotation_block)
    blocks = blocks_of(gradient.numel(), rotation_block)
    check_norms(norms, max_norms, blocks)
    check_key(key)
    check_same_device(gradient, residual, norms, max_norms, key, *table)
    looked_up = _table(table, threshold)
    codes = gradient.new_empty(packed_bytes(padded_of(gradient.numel()), looked_up.bits), dtype=torch.uint8)
    ranges = gradient.new_empty(blocks, 4, dtype=torch.float32)
    kept, clamped = gradient.new_empty(1, dtype=torch.int32), gradient.new_empty(1, dtype=torch.int64)
    energy = gradient.new_empty(1, dtype=torch.float64)
    kernels.clamp_ranges(norms, max_norms, ranges, kept, clamped, energy, table=looked_up, largest_norm=LARGEST_NORM)
    kernels.encode(
        gradient, residual, ranges, codes, kept, clamped, rotation_block=rotation_block, table=looked_up, key=key,
        keep_error=residual is not None,
    )  # fmt: skip
    return codes, kept, clamped


def lookup_sum(codes: Tensor, table: Sequence[Tensor], value_bits: int) -> Tensor:
    """See functions.py."""
    check_sums(codes, table, value_bits)
    check_same_device(codes, *table)
    looked_up = _table(table, 1.0)
    dtype = torch.uint8 if value_bits == 8 else torch.uint16
    sums = codes.new_empty(codes.shape[1] * 8 // looked_up.bits, dtype=dtype)
    if sums.numel():
        kernels.lookup_sum(codes, sums, table=looked_up)
    return sums


def pack(numbers: Tensor, bits: int) -> Tensor:
    """See functions.py."""
    check_numbers(numbers, bits)
    packed = numbers.new_empty(packed_bytes(numbers.numel(), bits), dtype=torch.uint8)
    kernels.pack(numbers.view(-1), packed, bits=bits)
    return packed


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
    """See functions.py."""
    value_bits = check_aggregate(aggregate, coordinates, workers, sum_bits)
    check_norms(max_norms, max_norms, blocks_of(coordinates, rotation_block))
    check_key(key)
    check_same_device(aggregate, max_norms, key, *table)
    looked_up = _table(table, threshold)
    average = aggregate.new_empty(coordinates, dtype=dtype)
    # Filled and not copied: a CUDA graph may record it.
    contributions = torch.full((1,), workers, dtype=torch.from_numpy(everybody(workers)).dtype, device=aggregate.device)
    kernels.decode(
        aggregate.view(-1), contributions, max_norms, average,
        codes_per_chunk=max(padded_of(coordinates), MIN_CODES_PER_PACKET), rotation_block=rotation_block,
        granularity=looked_up.granularity, threshold=looked_up.threshold, key=key, value_bits=value_bits,
        sum_bits=sum_bits,
    )  # fmt: skip
    return average


def _table(tensors: Sequence[Tensor], threshold: float) -> DeviceTable:
    check_table(tensors, threshold)
    kernels.check_bits(code_bits_of(tensors))
    return device_table(tensors, float(np.float32(threshold)))
