"""What operators take: tables and keys as tensors, sizes that may be symbolic, and checks of what is not."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from byteps_thc.config import ResolvedConfig
from byteps_thc.errors import InputError
from byteps_thc.keys import KEY_WORDS, device_key
from byteps_thc.rounding import Rounding
from byteps_thc.tables.device import DeviceTable
from byteps_thc.wire.layout import MAX_ROTATION_BLOCK, MIN_ROTATION_BLOCK
from byteps_thc.worker_limits import MAX_RANKS

GRADIENTS = (torch.float32, torch.float16, torch.bfloat16)
NUMBERS = (torch.uint8, torch.uint16)


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


def check_tensor(name: str, tensor: Tensor, dtypes: Sequence[torch.dtype], size: int | None = None) -> None:
    """InputError unless it is contiguous, of one of the types and, unless size is None, of `size` elements."""
    if tensor.dtype not in dtypes or (size is not None and tensor.numel() != size) or not tensor.is_contiguous():
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        count = "..." if size is None else size
        given = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        layout = "" if tensor.is_contiguous() else ", which is not contiguous"
        raise InputError(f"{name} must be contiguous {wanted}[{count}], not {given}{layout}")


def check_gradient(gradient: Tensor, residual: Tensor | None, rotation_block: int) -> None:
    """InputError unless they are what block_norms() says."""
    check_tensor("gradient", gradient, GRADIENTS)
    if residual is not None:
        check_tensor("residual", residual, [torch.float32], gradient.numel())
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
        check_tensor(name, tensor, [dtype], count)
    if not 0 < threshold < float("inf"):
        raise InputError(f"threshold must be positive and finite, not {threshold}: ResolvedConfig.table.threshold")


def check_norms(norms: Tensor, max_norms: Tensor, blocks: int) -> None:
    """InputError unless they are of so many blocks."""
    check_tensor("norms", norms, [torch.float32], blocks)
    check_tensor("max_norms", max_norms, [torch.float32], blocks)


def check_same_device(first: Tensor, *others: Tensor | None) -> None:
    """InputError unless all are on one device."""
    for other in others:
        if other is not None and other.device != first.device:
            raise InputError(f"tensors are on {first.device} and {other.device}: they must be on one device")


def check_key(key: Tensor) -> None:
    """InputError unless it may be of make_key()."""
    check_tensor("key", key, [torch.int32], KEY_WORDS)


def check_sums(codes: Tensor, table: Sequence[Tensor], value_bits: int) -> None:
    """InputError unless they are what lookup_sum() says."""
    check_table(table, 1.0)
    check_tensor("codes", codes, [torch.uint8])
    if codes.dim() != 2:
        raise InputError(f"codes must be uint8[workers, bytes], not of shape {list(codes.shape)}")
    granularity, workers = table[2].numel() - 1, codes.shape[0]
    if value_bits not in (8, 16):
        raise InputError(f"value_bits must be 8 or 16, not {value_bits}")
    if granularity * workers >> value_bits:
        raise InputError(f"sums of {workers} workers' values up to {granularity} do not fit {value_bits} bits")


def unsigned(norms: Tensor) -> Tensor:
    """Return norms without the sign that a NaN may have, in place: as an integer, NaN is the largest then."""
    norms.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    return norms


def check_numbers(numbers: Tensor, bits: int) -> None:
    """InputError unless they are what pack() says."""
    check_tensor("numbers", numbers, NUMBERS)
    most = 8 * numbers.element_size()
    if not 1 <= bits <= most:
        raise InputError(f"bits must be in 1 .. {most}, not {bits}")


def check_aggregate(aggregate: Tensor, coordinates: int, workers: int, sum_bits: int | None) -> int:
    """Return the bits of a sum, 8 or 16, once unpacked. InputError unless they are what decode() says."""
    padded = padded_of(coordinates)
    if coordinates < 0 or not 1 <= workers <= MAX_RANKS:
        raise InputError(
            f"decode takes 1 to {MAX_RANKS} workers and 0 coordinates or more, not {workers} and {coordinates}"
        )
    if sum_bits is None:
        check_tensor("aggregate", aggregate, NUMBERS, padded)
        return 8 * aggregate.element_size()
    if not 1 <= sum_bits <= 16:
        raise InputError(f"sum_bits must be in 1 .. 16, not {sum_bits}")
    check_tensor("aggregate", aggregate, [torch.uint8], packed_bytes(padded, sum_bits))
    return 8 if sum_bits <= 8 else 16
