"""The operators on CPU tensors, by the kernels that Compressor uses, on one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byteps_thc import _core
from byteps_thc.arrays import everybody, gradient_view
from byteps_thc.compressor import LARGEST_NORM
from byteps_thc.ops.arguments import (
    blocks_of,
    check_aggregate,
    check_gradient,
    check_key,
    check_norms,
    check_numbers,
    check_sums,
    check_table,
    code_bits_of,
    packed_bytes,
    padded_of,
    unsigned,
)
from byteps_thc.wire.layout import MIN_CODES_PER_PACKET


def block_norms(gradient: Tensor, residual: Tensor | None, rotation_block: int) -> Tensor:
    """See functions.py."""
    check_gradient(gradient, residual, rotation_block)
    norms = torch.empty(blocks_of(gradient.numel(), rotation_block))
    carried = None if residual is None else residual.numpy().reshape(-1)
    _core.block_norms(gradient_view(gradient), carried, norms.numpy(), rotation_block=rotation_block)
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
    check_norms(norms, max_norms, blocks_of(gradient.numel(), rotation_block))
    check_table(table, threshold)
    bits = code_bits_of(table)
    codes = torch.empty(packed_bytes(padded_of(gradient.numel()), bits), dtype=torch.uint8)
    kept = bool((torch.stack([norms, max_norms]) <= LARGEST_NORM).all())
    key_words, (domain, phase) = _key(key)
    clamped = _core.encode(
        gradient_view(gradient), None if residual is None else residual.numpy().reshape(-1), max_norms.numpy(),
        codes.numpy(), rotation_block=rotation_block, values=table[0].numpy().astype(np.uint16), bits=bits,
        threshold=threshold, domain=domain, phase=phase, keep_error=kept and residual is not None, **key_words,
    )  # fmt: skip
    return codes, torch.tensor([kept], dtype=torch.int32), torch.tensor([clamped])


def lookup_sum(codes: Tensor, table: Sequence[Tensor], value_bits: int) -> Tensor:
    """See functions.py."""
    check_sums(codes, table, value_bits)
    values, bits = table[0].numpy().astype(np.uint16), code_bits_of(table)
    sums = torch.zeros(codes.shape[1] * 8 // bits, dtype=torch.uint8 if value_bits == 8 else torch.uint16)
    for worker in codes.numpy():
        _core.lookup_sum(worker, values, sums.numpy(), bits=bits, add=True)
    return sums


def pack(numbers: Tensor, bits: int) -> Tensor:
    """See functions.py."""
    check_numbers(numbers, bits)
    packed = torch.empty(packed_bytes(numbers.numel(), bits), dtype=torch.uint8)
    _core.pack(numbers.numpy().reshape(-1), packed.numpy(), bits=bits)
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
    check_table(table, threshold)
    padded = padded_of(coordinates)
    sums = aggregate
    if sum_bits is not None:
        sums = torch.empty(padded, dtype=torch.uint8 if value_bits == 8 else torch.uint16)
        _core.unpack(aggregate.numpy(), sums.numpy(), bits=sum_bits)
    average = torch.empty(coordinates, dtype=dtype)
    _core.decode(
        sums.numpy().reshape(-1), everybody(workers), max_norms.numpy(), gradient_view(average),
        coordinates=coordinates, codes_per_chunk=max(padded, MIN_CODES_PER_PACKET), rotation_block=rotation_block,
        granularity=table[2].numel() - 1, threshold=threshold, **_key(key)[0],
    )  # fmt: skip
    return average


def _key(key: Tensor) -> tuple[dict[str, Any], tuple[int, int]]:
    """Return (seed, tensor and round, (domain, phase)) of a key."""
    check_key(key)
    low, high, tensor, round, domain, phase = key.numpy().view(np.uint32)[:6].tolist()
    return {"seed": low | high << 32, "tensor": tensor, "round": round}, (domain, phase)
