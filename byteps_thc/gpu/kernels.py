"""The kernels as plain functions on tensors; shapes and dtypes as in _core.pyi. Nothing here waits for the device.

Sizes: n coordinates, P padded, B rotation blocks. Tensors are contiguous, of any alignment, all on one device: a GPU,
or the CPU with TRITON_INTERPRET=1. `key`: keys.device_key. `tiles`: of partitions whose blocks end at tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from byteps_thc.compressor import LARGEST_NORM, SCALE_GROUP
from byteps_thc.errors import ConfigurationError
from byteps_thc.gpu import lookup_sum as sums_of
from byteps_thc.gpu import packing
from byteps_thc.gpu import requantize as requantizing
from byteps_thc.gpu.decode import decode_kernel
from byteps_thc.gpu.encode import RANGES_WARPS, encode_kernel, ranges_kernel
from byteps_thc.gpu.frontend import PLAIN
from byteps_thc.gpu.launch import Launcher
from byteps_thc.gpu.layouts import MAX_TILE, MIN_TILE, WARP_COORDINATES
from byteps_thc.gpu.norms import norms_kernel
from byteps_thc.gpu.tiles import TileList
from byteps_thc.tables.device import DeviceTable
from byteps_thc.wire.layout import MIN_ROTATION_BLOCK

#: Registers a thread, so that two tiles of 8192 share a multiprocessor.
_REGISTERS = 128


def register_limit() -> dict[str, Any]:
    """Option of the kernels that would take more registers than occupancy allows."""
    return {} if PLAIN else {"maxnreg": _REGISTERS}


#: The CPU rounds after every operation.
_EXACT: dict[str, Any] = {"enable_fp_fusion": False}
_norms = Launcher(norms_kernel, **_EXACT)
_ranges = Launcher(ranges_kernel, **_EXACT)
_encode = Launcher(encode_kernel, **_EXACT, **register_limit())
_decode = Launcher(decode_kernel, **_EXACT, **register_limit())
_lookup_words = Launcher(sums_of.lookup_words_kernel, **_EXACT)
_lookup_sum = Launcher(sums_of.lookup_sum_kernel, **_EXACT)
_requantize = Launcher(requantizing.requantize_kernel, **_EXACT)
_keep_loss = Launcher(requantizing.keep_loss_kernel, **_EXACT, **register_limit())
_expand = Launcher(requantizing.expand_kernel, **_EXACT)
_pack_rows = Launcher(packing.pack_rows_kernel, **_EXACT)
_pack = Launcher(packing.pack_kernel, **_EXACT)
_unpack_rows = Launcher(packing.unpack_rows_kernel, **_EXACT)
_unpack = Launcher(packing.unpack_kernel, **_EXACT)


def block_norms(
    gradient: Tensor, residual: Tensor | None, norms: Tensor, *, rotation_block: int, tiles: TileList | None = None
) -> None:
    """norms[B] = Euclidean norms of the blocks of gradient[n] + residual[n]."""
    carried = gradient if residual is None else residual
    _for_tiles(_norms, gradient.numel(), rotation_block, tiles, (gradient, carried, norms), (residual is not None,))


def clamp_ranges(
    norms: Tensor,
    max_norms: Tensor,
    ranges: Tensor,
    keep: Tensor,
    clamped: Tensor,
    energy: Tensor,
    *,
    table: DeviceTable,
    largest_norm: float = LARGEST_NORM,
    starts: Tensor | None = None,
) -> None:
    """What encode needs to know of a partition: ranges[B, 4], keep, clamped, energy [1], see encode.ranges_kernel.

    starts: int32[P + 1], of the blocks of P partitions, which then have a keep, clamped and energy each.
    """
    scalars = (table.threshold, float(table.granularity), largest_norm, norms.numel())
    several = starts is not None
    arguments = (norms, max_norms, ranges, keep, clamped, energy, keep if starts is None else starts, *scalars)
    _ranges(keep.numel(), arguments, (several,), RANGES_WARPS.value)


def encode(
    gradient: Tensor,
    residual: Tensor | None,
    ranges: Tensor,
    codes: Tensor,
    keep: Tensor,
    clamped: Tensor,
    *,
    rotation_block: int,
    table: DeviceTable,
    key: Tensor,
    keep_error: bool,
    known: Tensor | None = None,
    tiles: TileList | None = None,
) -> None:
    """codes[code_bytes(P, bits)] of gradient[n] + residual[n]; with keep_error and where keep[0] != 0 the new residual.

    ranges, keep: of clamp_ranges. clamped: int64[1], to which the clamped coordinates are added.
    known: float32[2, 16], KnownErrors.own: what decode() takes back is not kept.
    """
    carried = gradient if residual is None else residual
    errors = carried if known is None else known
    _for_tiles(
        _encode,
        gradient.numel(),
        rotation_block,
        tiles,
        (gradient, carried, codes, ranges, table.entries, table.values, key, keep, clamped, errors),
        (table.bits, table.wide, residual is not None, keep_error, known is not None),
    )


def decode(
    aggregate: Tensor,
    contributions: Tensor,
    max_norms: Tensor,
    out: Tensor,
    *,
    codes_per_chunk: int,
    rotation_block: int,
    granularity: int,
    threshold: float,
    key: Tensor,
    value_bits: int,
    sum_bits: int | None = None,
    known: Tensor | None = None,
    workers: int = 0,
    most: int | None = None,
    tiles: TileList | None = None,
) -> None:
    """out[n] = average gradient of aggregate[P], uint8 or uint16 as value_bits says.

    sum_bits: the aggregate is a stream of sums of so many bits, uint8[code_bytes(P, sum_bits)]. known: float32
    [2, 16], KnownErrors.sum, subtracted from the sums of chunks with `workers` contributions. most: the aggregate and,
    in the place of contributions, scales are those of expand(), of sums that were at most so large.
    """
    scaled = most is not None
    scalars = (threshold, float(granularity), float(most or 0), codes_per_chunk, workers)
    words = sum_bits is not None and aggregate.data_ptr() % 4 == 0
    if words:
        aggregate = aggregate.view(torch.int32)
    _for_tiles(
        _decode,
        out.numel(),
        rotation_block,
        tiles,
        (aggregate, contributions, max_norms, out, key, max_norms if known is None else known, *scalars),
        (
            sum_bits or 0,
            words,
            value_bits == 8 and not scaled,
            contributions.numel() > 1 and not scaled,
            SCALE_GROUP * scaled,
            known is not None,
        ),
    )


def lookup_sum(codes: Tensor, sums: Tensor, *, table: DeviceTable) -> None:
    """sums[count], uint8 or uint16 = sums over the shards of table values; codes: uint8[shards, code_bytes(count)]."""
    shards, stride = codes.shape
    count = sums.numel()
    aligned = codes.data_ptr() % 4 == 0 and sums.data_ptr() % 4 == 0 and stride % 4 == 0 and count % 8 == 0
    if table.packed is not None and aligned:
        words = count // 8
        wide = sums.dtype != torch.uint8
        unrolled = shards if shards <= sums_of.UNROLLED else sums_of.UNROLLED + 1
        arguments = (codes.view(torch.int32), table.packed, sums.view(torch.int32), words, stride // 4, shards)
        _lookup_words(-(-words // sums_of.WORDS), arguments, (unrolled, wide), sums_of.WARPS)
        return
    arguments = (codes, table.integers, sums, count, stride, shards)
    _lookup_sum(-(-count // sums_of.TILE), arguments, (table.bits,), sums_of.WARPS)


def requantize(
    sums: Tensor,
    codes: Tensor,
    scales: Tensor,
    *,
    table: DeviceTable,
    key: Tensor,
    first: int,
    most: int,
    own_key: Tensor | None = None,
    known: Tensor | None = None,
    workers: int = 0,
) -> None:
    """codes[code_bytes(count, bits)] and scales[groups], uint16, of sums[count], uint8 or uint16, a multiple of 64.

    table: of those codes. key: of the partition, with the domain of requantizing. first: where in the partition the
    sums begin, a multiple of SCALE_GROUP. most: granularity * workers of the sums. known, workers: of decode();
    own_key: its key. See requantize.requantize_kernel.
    """
    count = sums.numel()
    scalars = (first, count, workers, float(most), float(table.granularity))
    keys = (key, key if own_key is None else own_key, table.values if known is None else known)
    arguments = (sums, codes, scales, table.entries, table.values, *keys, *scalars)
    warps = requantizing.TILE // WARP_COORDINATES
    constants = (table.bits, table.wide, known is not None)
    _requantize(-(-count // requantizing.TILE), arguments, constants, warps)


def keep_loss(
    sums: Tensor,
    codes: Tensor,
    scales: Tensor,
    max_norms: Tensor,
    residual: Tensor,
    keep: Tensor,
    *,
    table: DeviceTable,
    key: Tensor,
    first: int,
    most: int,
    granularity: int,
    threshold: float,
    rotation_block: int,
    known: Tensor | None = None,
    workers: int = 0,
    tiles: TileList | None = None,
) -> None:
    """residual[n], of a partition, += what requantize() lost of sums[count], where keep[0] != 0.

    sums, codes, scales, table, first, most, known, workers: of requantize(). granularity: of the sums. max_norms, key,
    threshold: of decode(). See requantize.keep_loss_kernel.
    """
    count = sums.numel()
    scalars = (threshold, float(granularity), float(table.granularity), float(most), workers, first, count)
    errors = max_norms if known is None else known
    arguments = (sums, codes, scales, table.values, max_norms, residual, keep, key, errors, *scalars)
    part = slice(first, first + count)
    _for_tiles(_keep_loss, residual.numel(), rotation_block, tiles, arguments, (table.bits, known is not None), part)


def expand(shards: Tensor, values: Tensor, scales: Tensor, *, table: DeviceTable) -> None:
    """values[codes], uint8, and scales[codes / SCALE_GROUP], uint16, of what the ranks have requantized.

    shards: uint8[ranks, bytes], 4-byte aligned, of each as many codes, whole groups, and behind them their scales.
    """
    ranks, size = shards.shape
    count = values.numel() // ranks
    code_bytes = count * table.bits // 8
    words = shards.view(torch.int32)
    sent = shards.view(-1)[code_bytes:].view(torch.uint16)
    tiles = -(-count // (32 * requantizing.ROWS))
    arguments = (words, sent, table.integers, values, scales, size // 4, tiles, count // 32)
    _expand(ranks * tiles, arguments, (table.bits,), requantizing.WARPS)


def pack(numbers: Tensor, packed: Tensor, *, bits: int) -> None:
    """packed[code_bytes(count, bits)] = numbers[count], uint8 or uint16, as a stream, most significant bit first."""
    rows = numbers.numel() // 32 if packed.data_ptr() % 4 == 0 else 0
    if rows:
        words = packed[: rows * 4 * bits].view(torch.int32)
        constants = (bits, 1 << (bits - 1).bit_length())
        _pack_rows(-(-rows // packing.ROWS), (numbers, words, rows), constants, packing.WARPS)
        packed, numbers = packed[rows * 4 * bits :], numbers[rows * 32 :]
    if not numbers.numel():
        return
    word = 4 if packed.numel() % 4 == 0 and packed.data_ptr() % 4 == 0 else 1
    size = packed.numel() // word
    arguments = (numbers, packed.view(torch.int32) if word == 4 else packed, numbers.numel(), size)
    _pack(-(-size // packing.TILE), arguments, (bits, word), packing.WARPS)


def unpack(packed: Tensor, numbers: Tensor, *, bits: int) -> None:
    """Inverse of pack."""
    count = numbers.numel()
    rows = count // 32 if packed.data_ptr() % 4 == 0 else 0
    if rows:
        words = packed[: rows * 4 * bits].view(torch.int32)
        _unpack_rows(-(-rows // packing.ROWS), (words, numbers, rows), (bits,), packing.WARPS)
        packed, numbers, count = packed[rows * 4 * bits :], numbers[rows * 32 :], count % 32
    if not count:
        return
    _unpack(-(-count // packing.TILE), (packed, numbers, count), (bits,), packing.WARPS)


def check_rotation_block(rotation_block: int) -> None:
    """Raise ConfigurationError for blocks that do not fit a tile."""
    if rotation_block > MAX_TILE:
        raise ConfigurationError(
            f"rotation_block {rotation_block} is too large for the GPU kernels: use at most {MAX_TILE}"
        )


def _for_tiles(
    launch: Launcher,
    coordinates: int,
    rotation_block: int,
    tiles: TileList | None,
    arguments: tuple[Any, ...],
    constants: tuple[Any, ...],
    part: slice | None = None,
) -> None:
    """Launch a kernel for the full tiles of a partition, and once more for what is behind them.

    part: some of its coordinates; only for tiles that have one of these.
    """
    check_rotation_block(rotation_block)
    tile = max(MIN_TILE, rotation_block)
    padded = -(-coordinates // MIN_ROTATION_BLOCK) * MIN_ROTATION_BLOCK
    full = coordinates // tile
    begin, end = (0, coordinates) if part is None else (part.start, part.stop)
    first, last = begin // tile, min(full, -(-end // tile))
    constants = (rotation_block.bit_length() - 1, tile, *constants)
    warps = tile // WARP_COORDINATES
    if tiles is not None:
        for rows, tail in tiles.of_part(begin, end):
            if len(rows):
                launch(len(rows), (*arguments, rows, 0, coordinates, padded), (*constants, tail, True), warps)
        return
    unused = arguments[0]
    if first < last:
        launch(last - first, (*arguments, unused, first, coordinates, padded), (*constants, False, False), warps)
    if end > full * tile:
        launch(1, (*arguments, unused, full, coordinates, padded), (*constants, True, False), warps)
