"""What operators take: tables and keys as tensors, sizes that may be symbolic, and checks of what is not."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byteps_thc.arrays import require_tensor
from byteps_thc.config import ResolvedConfig
from byteps_thc.errors import InputError
from byteps_thc.keys import KEY_WORDS, device_key
from byteps_thc.rounding import Rounding
from byteps_thc.tables.device import DeviceTable
from byteps_thc.wire.layout import MAX_ROTATION_BLOCK, MIN_ROTATION_BLOCK

GRADIENTS = (torch.float32, torch.float16, torch.bfloat16)


def make_table(resolved: ResolvedConfig, device: torch.device | str) -> list[Tensor]:
    """Return the lookup table as the operators take it: values in two types, and what the GPU kernels look up."""
    table = DeviceTable.of(resolved.table, torch.device(device))
    tensors = [table.integers, table.values, table.entries]
    return tensors if table.packed is None else [*tensors, table.packed]


def make_key(name: str, resolved: ResolvedConfig, worker: int, device: torch.device | str) -> Tensor:
    """Return the key of the random bits of one gradient, int32[8], of round 0.

    name: the same on all workers and another for each gradient. worker: this one. set_round() before each round, to one
    that was never there: a tensor, int32[1], where the call is compiled or recorded, and a number else.
    """
    rounding = Rounding.of(resolved.config.rounding, worker, resolved.workers)
    return device_key(
        torch.device(device), seed=resolved.config.seed, tensor=zlib.crc32(name.encode()), rounding=rounding
    )


def device_table(tensors: Sequence[Tensor], threshold: float) -> DeviceTable:
    """Return what make_table() was made of, with another threshold."""
    integers, values, entries, *packed = tensors
    return DeviceTable(
        code_bits_of(tensors),
        entries.numel() - 1,
        threshold,
        entries,
        values,
        integers,
        packed[0] if packed else None,
    )


def host_key(key: Tensor) -> tuple[dict[str, Any], tuple[int, int]]:
    """Return (seed, tensor and round, (domain, phase)) of make_key()'s, which is in host memory."""
    low, high, tensor, round, domain, phase = key.numpy().view(np.uint32)[:6].tolist()
    return {"seed": low | high << 32, "tensor": tensor, "round": round}, (domain, phase)


# Sizes: of ints and of torch.SymInts.


def code_bits_of(table: Sequence[Tensor]) -> int:
    """Return b of a table, which a compiled function is compiled for."""
    return int(table[0].shape[0]).bit_length() - 1


def padded_of(coordinates: int) -> int:
    """Return P."""
    return -(-coordinates // MIN_ROTATION_BLOCK) * MIN_ROTATION_BLOCK


def blocks_of(coordinates: int, rotation_block: int) -> int:
    """Return B: full blocks, and a block for each binary digit of what is behind them."""
    padded = padded_of(coordinates)
    blocks, size = padded // rotation_block, rotation_block // 2
    while size >= MIN_ROTATION_BLOCK:
        blocks += padded // size % 2
        size //= 2
    return blocks


def packed_bytes(count: int, bits: int) -> int:
    """Return the bytes of so many packed numbers."""
    return (count * bits + 7) // 8


def check_gradient(gradient: Tensor, residual: Tensor | None, rotation_block: int) -> None:
    """InputError unless they are what block_norms() says."""
    require_tensor("gradient", gradient, GRADIENTS)
    if residual is not None:
        require_tensor("residual", residual, [torch.float32, torch.bfloat16], gradient.numel())
    check_rotation_block(rotation_block)


def check_rotation_block(rotation_block: int) -> None:
    """InputError unless it is one that ThcConfig takes."""
    power_of_two = rotation_block > 0 and not rotation_block & (rotation_block - 1)
    if not (power_of_two and MIN_ROTATION_BLOCK <= rotation_block <= MAX_ROTATION_BLOCK):
        limits = f"{MIN_ROTATION_BLOCK} .. {MAX_ROTATION_BLOCK}"
        raise InputError(f"rotation_block must be a power of two in {limits}, not {rotation_block}")


def check_table(table: Sequence[Tensor], threshold: float) -> None:
    """InputError unless it may be of make_table()."""
    if len(table) not in (3, 4) or table[0].numel() < 2 or table[2].numel() < 2:
        raise InputError("table must be what make_table() returns")
    size = 1 << code_bits_of(table)
    for name, tensor, dtype, count in (
        ("table[0]", table[0], torch.int32, size),
        ("table[1]", table[1], torch.float32, size),
        ("table[2]", table[2], torch.int64, table[2].numel()),
        *(("table[3]", packed, torch.int32, 4) for packed in table[3:]),
    ):
        require_tensor(name, tensor, [dtype], count)
    if not 0 < threshold < float("inf"):
        raise InputError(
            f"threshold must be positive and finite, not {threshold}: ResolvedConfig.table.threshold, for decode "
            "ResolvedConfig.decode_threshold"
        )


def check_norms(norms: Tensor, max_norms: Tensor, blocks: int) -> None:
    """InputError unless they are of so many blocks."""
    require_tensor("norms", norms, [torch.float32], blocks)
    require_tensor("max_norms", max_norms, [torch.float32], blocks)


def check_key(key: Tensor) -> None:
    """InputError unless it may be of make_key()."""
    require_tensor("key", key, [torch.int32], KEY_WORDS)
